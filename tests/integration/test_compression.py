"""Responses that are the same for every client are compressed; no other response is."""

import gzip

from tests.support.cases import cases
from tests.support.repeating_clients import MOST_ANONYMOUS_BYTES
from tests.support.service import Service

DOCUMENTS = ("/docs", "/api/v1/openapi.json", "/metrics", "/assets/any/base.css")


@cases("path", DOCUMENTS)
async def test_public_document_is_small_for_a_client_that_accepts_gzip(
    service: Service, path: str
) -> None:
    async with service.client.stream(
        "GET", path, headers={"Accept-Encoding": "gzip, br"}
    ) as answer:
        sent = b"".join([part async for part in answer.aiter_raw()])
    plain = await service.client.get(path, headers={"Accept-Encoding": "identity"})

    assert answer.headers["Content-Encoding"] == "gzip"
    assert len(sent) <= MOST_ANONYMOUS_BYTES
    assert "Content-Encoding" not in plain.headers
    assert answer.headers["Content-Type"] == plain.headers["Content-Type"]
    for one in (answer, plain):
        assert "Accept-Encoding" in one.headers["Vary"]
    if path != "/metrics":  # counts what has happened between
        assert gzip.decompress(sent) == plain.content


async def test_page_with_a_form_is_not_compressed(service: Service) -> None:
    answer = await service.client.get("/sign-in", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "Content-Encoding" not in answer.headers


async def test_response_to_a_caller_is_not_compressed(service: Service) -> None:
    org = await service.organization()
    answer = await org.owner.get("/api/v1/projects")
    assert answer.request.headers["Accept-Encoding"].startswith("gzip")
    assert answer.status_code == 200
    assert "Content-Encoding" not in answer.headers


@cases(
    ("accepted", "is_compressed"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip; q=1.0", True),
        ("identity, gzip;q=0", False),
        ("gzip;q=0.000", False),
        ("xgzip", False),
        ("", False),
    ],
)
async def test_client_chooses_the_encoding(
    service: Service, accepted: str, is_compressed: bool
) -> None:
    answer = await service.client.get("/docs", headers={"Accept-Encoding": accepted})
    assert ("Content-Encoding" in answer.headers) == is_compressed
