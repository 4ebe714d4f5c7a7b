"""Names that occur once: those of test modules, and of the public classes of the three
distributions.
"""

from collections import Counter, defaultdict
from importlib import import_module
from pathlib import Path

from tests.support.django_project import configure_django

TESTS = Path(__file__).parents[1]
IN_EVERY_FOLDER = {"__init__.py", "__main__.py", "conftest.py"}
PUBLIC_MODULES = (
    "tenantry.asgi",
    "tenantry.asgi.fastapi",
    "tenantry.wsgi",
    "tenantry.wsgi.django",
    "tenantry.wsgi.flask",
    "tenantry_devkit.simulator",
    "tenantry_devkit.testing",
    "tenantry_sdk",
    "tenantry_sdk.oauth",
    "tenantry_sdk.types",
    "tenantry_sdk.webhooks",
)


def test_each_test_module_has_a_name_of_its_own() -> None:
    names = [path.name for path in TESTS.rglob("*.py") if "node_modules" not in path.parts]
    counts = Counter(name for name in names if name not in IN_EVERY_FOLDER)
    assert [name for name, count in counts.items() if count > 1] == []


def test_a_public_class_name_means_one_class() -> None:
    configure_django()
    classes: dict[str, set[str]] = defaultdict(set)
    for module in map(import_module, PUBLIC_MODULES):
        for name in getattr(module, "__all__", vars(module)):
            thing = getattr(module, name)
            if isinstance(thing, type) and thing.__module__.startswith("tenantry"):
                classes[thing.__name__].add(f"{thing.__module__}.{thing.__qualname__}")
    assert {name: found for name, found in classes.items() if len(found) > 1} == {}
    assert {"Tenantry", "AsgiAuthenticator", "WsgiAuthenticator", "SuiteTenantry"} <= set(classes)
