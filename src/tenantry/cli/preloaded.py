"""What the fork server of ``serve`` imports before it forks server processes.

Unlike any other import this one does something: it prepares the process, so that its forks share
the result. It opens no connection and starts no thread, neither of which survives a fork.
"""

from tenantry.common.process import set_for_serving, without_garbage_collection

with without_garbage_collection():
    from tenantry.app import prepare_process

    prepare_process()
# What is frozen here, no fork collects, so its pages stay shared.
set_for_serving()
