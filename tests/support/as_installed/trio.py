"""On the module path of the tests' processes, so that they run as users install them: without trio.

httpx imports trio where it finds it, which takes as long as everything else that a command imports.
"""

raise ImportError("this process runs without trio")
