"""Templates are compiled once, wherever the service is installed."""

from pathlib import Path

from tenantry.server.page_assets import load_templates, page_templates


def test_templates_are_compiled_once_where_nothing_can_be_written(tmp_path: Path) -> None:
    templates = tmp_path / "templates"
    templates.mkdir()
    (templates / "page.html").write_text("Hello {{ name }}")
    # as in a read-only folder: there is no file in it, and none can be made, even by root
    (tmp_path / "__pycache__").symlink_to(tmp_path / "missing" / "folder")
    load_templates(page_templates(templates))

    environment = page_templates(templates)
    assert environment.loader is not None
    assert environment.bytecode_cache is not None
    source, filename, _ = environment.loader.get_source(environment, "page.html")
    compiled = environment.bytecode_cache.get_bucket(environment, "page.html", filename, source)
    assert compiled.code is not None
    assert environment.get_template("page.html").render(name="Ada") == "Hello Ada"

    (templates / "page.html").write_text("Bye {{ name }}")
    assert page_templates(templates).get_template("page.html").render(name="Ada") == "Bye Ada"
