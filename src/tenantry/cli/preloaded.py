"""What the fork server of ``serve`` imports before it forks server processes.

Unlike any other import this one does something: it registers the routes, so that the processes
share them. It opens no connection and starts no thread, neither of which survives a fork.
"""

from tenantry.app import litestar_routes

litestar_routes()
