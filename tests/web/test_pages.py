"""The pages, state by state, as they are without a browser.  Design 4, pages."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest
from starlette.testclient import TestClient

from sidecar.core.verdict import Judgement, Verdict
from sidecar.errors import SourceUnavailable
from sidecar.settings import Bind
from sidecar.web.data import Execution
from sidecar.web.pages import PAGE_HEADERS
from tests.web.given import (
    AWAY,
    EVIL,
    HEADLINES,
    LONG,
    LONGEST,
    ROOTS,
    STATES,
    TOKEN,
    TWO,
    WRONG,
    E,
    Given,
    divergent,
    refused,
    told,
    with_finding,
)

HTML = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
BEARER = {**HTML, "authorization": f"Bearer {TOKEN}"}
ALL = STATES["divergent"]
REFUSAL = Judgement(E, Verdict.REFUSED_MULTIPLE_ROOTS, log_rows=10)


class Elements(HTMLParser):
    """The elements of a page with their attributes; every one has to be closed."""

    VOID = frozenset({"meta", "link", "input", "br", "circle", "path", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(attrs) == len(dict(attrs)), (tag, attrs)
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self._open.pop() == tag

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


def client(given: Given, token: str | None = TOKEN) -> TestClient:
    return TestClient(given.app(token), base_url="http://127.0.0.1:9110", raise_server_exceptions=False)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", text))


def opened(given: Given, path: str, status: int = 200, headers: dict[str, str] | None = None) -> str:
    answer = client(given).get(path, headers=headers or HTML, follow_redirects=False)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    for name, value in PAGE_HEADERS.items():
        assert answer.headers[name] == value
    checked(answer.text)
    return answer.text


def checked(text: str) -> None:
    """What holds for every page: landmarks, one first heading, nothing inline or from elsewhere."""
    elements = Elements(text)
    for landmark in ("header", "nav", "main", "footer", "h1"):
        assert len(elements.of(landmark)) == 1, landmark
    ids = [attributes["id"] for _, attributes in elements.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in elements.found:
        assert "style" not in attributes, tag
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "action"):
            assert (attributes.get(name) or "/").startswith(("/", "#")), (tag, attributes)
            assert not (attributes.get(name) or "/").startswith("//")
        for name in ("aria-labelledby", "for"):
            assert attributes.get(name) is None or attributes[name] in ids, (tag, attributes)
    assert elements.of("style") == []
    assert all(each.get("src") for each in elements.of("script"))
    assert text.count("<caption") == len(elements.of("table"))
    levels = [int(tag[1]) for tag, _ in elements.found if re.fullmatch("h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in pairwise(levels))


@pytest.mark.parametrize("state", STATES)
def test_the_overview_of_every_state_has_its_headline(state: str) -> None:
    text = opened(STATES[state], "/")
    (headline,) = re.findall(r'<p id="headline".*?</p>', text, re.DOTALL)
    assert HEADLINES[state] in words(headline)
    assert 'role="status"' in headline


def numbers(state: str) -> str:
    (section,) = re.findall(r'<section id="numbers".*?</section>', opened(STATES[state], "/"), re.DOTALL)
    return str(section)


def test_the_two_numbers_stand_together_and_are_good_only_when_the_run_is_accepted() -> None:
    assert "0 no kind of divergence stands" in words(numbers("healthy"))
    assert "100.00% 59,200 of 59,200 events, 1,480 of 1,480 executions" in words(numbers("healthy"))
    assert "3 payload 2, second_writer 1" in words(numbers("divergent"))
    tones = {state: re.findall(r'class="numbers (\w+)"', numbers(state))[0] for state in STATES}
    assert tones == {
        "empty": "wait",
        "healthy": "good",
        "divergent": "bad",
        "refused": "warn",
        "pending": "warn",
        "control failed": "warn",
        "gates off": "wait",
        "Postgres away": "good",
    }


def test_no_divergence_at_no_coverage_says_that_it_is_no_agreement() -> None:
    assert "no divergence at no coverage is not agreement" in numbers("empty")
    assert "100" not in words(numbers("empty"))
    assert "Not known" in numbers("gates off")


def test_the_overview_shows_windows_verdicts_lanes_acceptance_gates_store_and_findings() -> None:
    text = words(opened(ALL, "/"))
    for said in (
        "Last 5 minutes",
        "Since the start",
        "divergent 2",
        "Store and log hold different chains.",
        "live every row as it comes 0.2 s",
        "sweep the whole table 6.9 min",
        "Open findings : 3 open",
        "populate on",
        "412.0 MiB",
        f"{WRONG} divergent payload at position 3",
    ):
        assert said in text, said
    assert f'href="/executions/{WRONG}#finding-41"' in opened(ALL, "/")


def test_many_refusals_hide_no_open_divergence() -> None:
    many = {E + 100 + n: with_finding(refused(E + 100 + n), REFUSAL, 100 + n) for n in range(20)}
    given = Given(STATES["divergent"].status, {WRONG: divergent(WRONG), **many})
    listed = re.findall(r'class="id" href="/executions/(\d+)#', opened(given, "/"))
    assert listed[0] == str(WRONG)
    assert len(listed) == 12


def test_refusals_leave_coverage_below_its_floor_and_are_named() -> None:
    text = words(opened(STATES["refused"], "/"))
    assert "refused_multiple_roots 40" in text
    assert "Coverage : 0.9454 of the eligible events, asked 0.95" in text
    assert "Oldest missing predecessor 66.7 min" in text


def test_a_failed_control_is_told_with_its_count() -> None:
    assert "340 as expected, 2 not" in words(opened(STATES["control failed"], "/"))


# An execution


@pytest.mark.parametrize(
    ("execution_id", "events", "rows"), [(TWO, 2, 2), (LONG, 73, 11), (LONGEST, 500, 11)]
)
def test_a_chain_is_drawn_folded_and_told_as_a_table(execution_id: int, events: int, rows: int) -> None:
    text = opened(ALL, f"/executions/{execution_id}")
    assert "Store and log hold the same chain." in text
    (drawing,) = re.findall(r'<svg class="chain" role="img".*?</svg>', text, re.DOTALL)
    assert drawing.count("<g ") == rows
    (table,) = re.findall(r'<details id="rows">.*?</details>', text, re.DOTALL)
    assert table.count("<tr>") == events + 1
    whole = opened(ALL, f"/executions/{execution_id}?all")
    assert whole.count("<g ") == events


def test_what_is_irregular_is_said_drawn_and_in_the_table() -> None:
    text = opened(ALL, f"/executions/{ROOTS}")
    told = words(text)
    assert "2 roots: 1, 7." in told
    assert "Event 11 is missing; 12 names it as predecessor." in told
    assert "Fork: 2 events follow 3: 4, 5." in told
    for shape in ("root", "fork", "gap"):
        assert f'<g class="{shape}">' in text
    assert "fork: 2 successors" in told
    assert "its predecessor is missing" in told


def test_findings_stand_side_by_side_with_the_first_difference_marked() -> None:
    text = opened(ALL, f"/executions/{WRONG}")
    assert text.count("first difference") == 1
    (row,) = re.findall(r'<tr class="differs first">.*?</tr>', text, re.DOTALL)
    assert row.count("<td>") == 2
    assert row.count('<div class="differs">') == 4, "bytes and sha256 on both sides"


def test_a_body_is_shown_to_those_who_have_the_token_and_to_nobody_else() -> None:
    path = f"/executions/{WRONG}"
    closed = opened(ALL, path)
    assert "s3cr3t" not in closed
    assert f'href="/login?next={path}"' in closed
    shown = opened(ALL, path, headers=BEARER)
    assert "s3cr3t" in shown
    assert "<mark> other&#34;}</mark>" in shown
    assert "from character" in shown
    untold = client(ALL, None).get(path, headers=BEARER).text
    assert "s3cr3t" not in untold
    assert "NOETL_CHAIN_API_TOKEN_FILE" in untold


def test_no_page_shows_a_body_without_the_token() -> None:
    for given in STATES.values():
        for path in ("/", "/executions", "/login", *(f"/executions/{i}?all" for i in given.shown)):
            assert "s3cr3t" not in client(given).get(path, headers=HTML).text
            assert "hacked=1&lt;/script&gt;&#34;}" not in client(given).get(path, headers=HTML).text


def test_hostile_text_is_text_and_a_body_of_300_kb_stays_out_of_the_page() -> None:
    for headers in (HTML, BEARER):
        text = opened(ALL, f"/executions/{EVIL}", headers=headers)
        assert len(text) < 60_000
        assert "<script>" not in text
        assert "<img" not in text
        assert "\u202e" not in text
        assert "\\u202e" in text


def test_without_postgres_the_store_side_is_shown_and_the_other_is_named() -> None:
    text = words(opened(STATES["Postgres away"], f"/executions/{AWAY}"))
    assert "the log was not read: Postgres does not answer" in text
    assert "Log not read" in text
    assert "Store 2 rows" in text


# Ways in, and refusals


def test_the_search_box_leads_to_the_execution_and_says_what_is_no_id() -> None:
    answer = client(ALL).get(f"/executions?id=%20{TWO}%20", headers=HTML, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/executions/{TWO}")
    text = opened(ALL, "/executions?id=%3Cscript%3E", 400)
    assert "&lt;script&gt;" in text
    assert "is no execution id" in text


def test_the_list_is_narrowed_by_verdict() -> None:
    assert opened(ALL, "/executions").count('<tr><th scope="row"') == 8
    text = opened(ALL, "/executions?verdict=divergent")
    assert text.count('<tr><th scope="row"') == 2
    assert "<option selected>divergent</option>" in text
    assert "There is none." in opened(ALL, "/executions?verdict=log_lost")


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        ("/none", 404, "there is no such route"),
        (f"/executions/{E + 99}", 404, "was never seen"),
        ("/executions/abc", 404, "an execution id is a 64-bit integer"),
        ("/executions/9223372036854775808", 404, "an execution id is a 64-bit integer"),
        ("/executions?verdict=none", 400, "there is no such verdict"),
        ("/static/other.css", 404, "there is no such route"),
    ],
)
def test_a_refusal_is_a_page_for_people_and_a_problem_for_programs(path: str, status: int, said: str) -> None:
    text = opened(ALL, path, status)
    assert said in text
    assert 'role="alert"' in text
    answer = client(ALL).get(path, headers={"accept": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert said in answer.json()["detail"]


def test_postgres_away_is_a_page_with_503() -> None:
    class Away(Given):
        async def execution(self, execution_id: int, *, with_log: bool) -> Execution:
            raise SourceUnavailable("Postgres does not answer")

    text = opened(Away(lambda: told(None)), f"/executions/{E}", 503)
    assert "Postgres does not answer" in text
    assert "Load the page again later" in text


def test_our_own_bug_is_a_page_that_says_nothing_of_it() -> None:
    def broken() -> dict[str, Any]:
        raise RuntimeError("a secret of ours")

    assert "secret" not in opened(Given(broken), "/", 500)


def test_a_wrong_token_is_a_page_with_the_form() -> None:
    text = opened(ALL, "/", 401, {**HTML, "authorization": "Bearer wrong"})
    assert 'action="/login"' in text


def test_the_api_stays_json_whoever_asks() -> None:
    answer = client(ALL).get("/api/v1/none", headers=HTML)
    assert answer.headers["content-type"] == "application/problem+json"


def test_outside_loopback_only_the_way_in_is_open() -> None:
    outside = TestClient(ALL.app(TOKEN, Bind("0.0.0.0", 9110)), base_url="http://chain.example:9110")
    for path in ("/", "/executions", f"/executions/{TWO}"):
        answer = outside.get(path, headers=HTML)
        assert answer.status_code == 401
        assert f'name="next" value="{path}"' in answer.text
        assert "coverage" not in answer.text.lower()
    for path in ("/login", "/static/page.css", "/static/live.js", "/static/icon.svg"):
        assert outside.get(path, headers=HTML).status_code == 200
    assert outside.get("/", headers=BEARER).status_code == 200


def test_the_form_logs_in_and_out_and_comes_back_to_the_page() -> None:
    here = client(ALL)
    path = f"/executions/{WRONG}"
    form = {"token": TOKEN, "next": path}
    same = {"origin": "http://127.0.0.1:9110", **HTML}
    answer = here.post("/login", data=form, headers=same, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, path)
    text = here.get(path, headers=HTML).text
    assert "s3cr3t" in text
    assert 'action="/logout"' in text
    here.post("/logout", headers=same)
    assert "s3cr3t" not in here.get(path, headers=HTML).text
    refused = here.post("/login", data={"token": "wrong"}, headers=same)
    assert refused.status_code == 401
    assert refused.headers["content-type"] == "text/html; charset=utf-8"
    checked(refused.text)
