"""Settings: what the environment may say, and what it is refused for.  Spec 8.2."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sidecar.core.due import Windows
from sidecar.core.shards import Shard
from sidecar.errors import ConfigError
from sidecar.readings import Bind, Reading, reading
from sidecar.settings import Arming, Settings, load, unknown, variable

SECRET = "hunter2&x y"


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields:
        monkeypatch.delenv(variable(field), raising=False)


@pytest.mark.parametrize("text", ["1", "true", "yes", "on", " YES ", "On\n"])
def test_a_gate_is_on(text: str) -> None:
    assert reading(text) is Reading.ON


@pytest.mark.parametrize("text", ["0", "false", "no", "off", "", "  ", "OFF"])
def test_a_gate_is_off(text: str) -> None:
    assert reading(text) is Reading.OFF


@pytest.mark.parametrize("text", ["2", "enabled", "o n", "tru\u0435", "y", "-1"])
def test_c10_any_other_text_is_unrecognised_and_never_on(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_CHAIN_POPULATE", text)
    settings = load()
    assert settings.populate is Reading.UNRECOGNISED
    assert settings.arming is Arming.OFF
    assert settings.unrecognised == ("NOETL_CHAIN_POPULATE",)


@pytest.mark.parametrize(
    ("text", "read"), [("true ", Reading.ON), ("YES", Reading.ON), ("2", Reading.UNRECOGNISED)]
)
def test_i43_the_certificate_s_gate_is_read_as_every_other(
    text: str, read: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOETL_CHAIN_CERT", text)
    settings = load()
    assert settings.cert is read
    assert settings.unrecognised == (("NOETL_CHAIN_CERT",) if read is Reading.UNRECOGNISED else ())


def test_absent_is_a_reading_of_its_own() -> None:
    assert set(load().gates.values()) == {Reading.ABSENT}


def test_i54_populate_alone_is_partial() -> None:
    assert Settings.given(populate="on").arming is Arming.PARTIAL


def test_arming_is_a_truth_table() -> None:
    for on in itertools.product((False, True), repeat=5):
        populate, compare, serve, cert, rejoin = on
        settings = Settings.given(populate=populate, compare=compare, serve=serve, cert=cert, rejoin=rejoin)
        partly = Arming.PARTIAL if any(on) else Arming.OFF
        wanted = Arming.ARMED if populate and compare else partly
        assert settings.arming is wanted, on


@pytest.mark.parametrize(
    "text", ["", "x", "5s", "1_000", "nan", "inf", "1e3", "-1", "0", "999999999999", "٣"]
)
def test_a_number_that_is_none_or_out_of_range_names_its_variable(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NOETL_CHAIN_TICK_S", "NOETL_CHAIN_POLL_MS"):
        monkeypatch.setenv(name, text)
        with pytest.raises(ConfigError, match=name) as refused:
            load()
        assert "\n" not in str(refused.value)
        monkeypatch.delenv(name)


def test_an_integer_has_no_fraction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_CHAIN_POLL_MS", "150.0")
    with pytest.raises(ConfigError, match="NOETL_CHAIN_POLL_MS: not an integer"):
        load()


def test_every_number_has_both_bounds() -> None:
    for name, field in Settings.model_fields.items():
        if field.annotation in (int, float):
            kinds = {type(mark).__name__ for mark in field.metadata}
            assert {"Ge", "Le"} <= kinds, name


def test_all_wrong_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_CHAIN_TICK_S", "x")
    monkeypatch.setenv("NOETL_CHAIN_METRICS_BIND", "nowhere")
    with pytest.raises(ConfigError, match=r"TICK_S.*METRICS_BIND"):
        load()


def test_a_shard_lies_below_the_count() -> None:
    with pytest.raises(ConfigError, match="SHARD_INDEX must be below"):
        Settings.given(shard_index=2, shard_count=2)
    assert Settings.given(shard_index=1, shard_count=2).shard == Shard(1, 2)


@pytest.mark.parametrize(
    ("host", "index"),
    [("noetl-chain-0", 0), ("noetl-chain-12", 12), ("chain-3.chain.noetl.svc.cluster.local", 3)],
)
def test_a_shard_is_by_default_the_ordinal_of_the_pod(
    host: str, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.settings.gethostname", lambda: host)
    monkeypatch.setenv("NOETL_CHAIN_SHARD_COUNT", "16")
    assert load().shard == Shard(index, 16)
    monkeypatch.setenv("NOETL_CHAIN_SHARD_INDEX", "")
    assert load().shard == Shard(index, 16), "empty is unset"
    monkeypatch.setenv("NOETL_CHAIN_SHARD_INDEX", "5")
    assert load().shard == Shard(5, 16), "what is set stands above the name"
    monkeypatch.delenv("NOETL_CHAIN_SHARD_INDEX")
    monkeypatch.delenv("NOETL_CHAIN_SHARD_COUNT")
    assert load().shard == Shard(0, 1), "a single one asks for no name"


def test_an_ordinal_beyond_the_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fourth pod of three shards follows nothing, and not what another one follows."""
    monkeypatch.setattr("sidecar.settings.gethostname", lambda: "noetl-chain-3")
    monkeypatch.setenv("NOETL_CHAIN_SHARD_COUNT", "3")
    with pytest.raises(ConfigError, match=r"must be below NOETL_CHAIN_SHARD_COUNT.*no shard 3 of 3"):
        load()


@pytest.mark.parametrize("host", ["laptop", "web-1a", "3", "pod-", "pod-\u0663", "pod-12345", "pod-2-x", ""])
def test_without_an_ordinal_one_of_several_shards_has_to_be_named(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sidecar.settings.gethostname", lambda: host)
    monkeypatch.setenv("NOETL_CHAIN_SHARD_COUNT", "2")
    with pytest.raises(ConfigError, match="nothing says which one"):
        load()


@pytest.mark.parametrize("name", ["", "a-b", 'a"b', "1a", "a.b", "x" * 64, "ä"])
def test_a_schema_is_a_plain_identifier(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_SCHEMA", name)
    with pytest.raises(ConfigError, match="NOETL_SCHEMA"):
        load()


def test_no_secret_in_repr_or_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    file.write_text(SECRET)
    monkeypatch.setenv("POSTGRES_PASSWORD", SECRET)
    monkeypatch.setenv("NOETL_CHAIN_DSN", f"mysql://{SECRET}")
    settings = load(store=f"postgresql://u:{SECRET}@h/db")
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)
    for bad in (settings, Settings.given(dsn_file=file)):
        with pytest.raises(ConfigError) as refused:
            bad.source_dsn()
        assert "hunter2" not in str(refused.value) + refused.value.hint


def test_the_parts_of_a_connection_survive_assembly() -> None:
    from urllib.parse import parse_qs, urlsplit

    settings = Settings.given(host="/run/pg", port=6432, user="u@x", database="d b", password=SECRET)
    query = parse_qs(urlsplit(settings.source_dsn()).query)
    assert query["host"] == ["/run/pg"]
    assert query["user"] == ["u@x"]
    assert query["password"] == [SECRET]
    assert query["database"] == ["d b"]


def test_files_hold_the_url_or_the_password(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(" postgresql://u@h/db \n")
    assert Settings.given(dsn_file=file).source_dsn() == "postgresql://u@h/db"
    file.write_text("pw\n")
    assert "password=pw" in Settings.given(host="h", password_file=file).source_dsn()


def test_a_file_is_read_again_at_every_call(tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    file.write_text("postgresql://a/db")
    settings = Settings.given(dsn_file=file)
    settings.source_dsn()
    file.write_text("postgresql://b/db")
    assert settings.source_dsn() == "postgresql://b/db"


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_an_unusable_secret_file_names_its_variable(content: bytes | None, tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match="NOETL_CHAIN_DSN_FILE") as refused:
        Settings.given(dsn_file=file).source_dsn()
    assert str(tmp_path) not in str(refused.value)


def test_two_sources_of_one_secret_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="NOETL_CHAIN_DSN and NOETL_CHAIN_DSN_FILE"):
        Settings.given(dsn="postgresql://h/d", dsn_file=tmp_path).source_dsn()
    with pytest.raises(ConfigError, match="POSTGRES_PASSWORD and POSTGRES_PASSWORD_FILE"):
        Settings.given(host="h", password="x", password_file=tmp_path).source_dsn()


def test_nothing_configured_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match="no connection") as refused:
        load().source_dsn()
    assert "NOETL_CHAIN_DSN" in refused.value.hint


def test_an_option_stands_above_both_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "dsn"
    file.write_text("postgresql://file/db")
    monkeypatch.setenv("NOETL_CHAIN_DSN", "postgresql://env/db")
    assert load(dsn="postgresql://option/db").source_dsn() == "postgresql://option/db"
    assert load(dsn_file=str(file)).source_dsn() == "postgresql://file/db"
    with pytest.raises(ConfigError, match="--dsn and --dsn-file"):
        load(dsn="postgresql://h/d", dsn_file=str(file))


def test_a_store_is_a_path_or_a_url(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(store="x.db").store == f"sqlite:///{tmp_path}/x.db"
    assert load(store="sqlite:////a/b.db").store == "sqlite:////a/b.db"
    for bad in ("", "mysql://x", "sqlite:x"):
        with pytest.raises(ConfigError, match="--store"):
            load(store=bad)


@pytest.mark.parametrize(
    ("text", "host", "port"), [("0.0.0.0:9109", "0.0.0.0", 9109), ("[::1]:0", "::1", 0), (":80", "", 80)]
)
def test_a_bind_is_host_and_port(text: str, host: str, port: int) -> None:
    assert Settings.given(metrics_bind=text).metrics_bind == Bind(host, port)


@pytest.mark.parametrize("text", ["9109", "x:y", "x:70000", "x:-1", "", "[::1", "::1]:1", "[[::1]]:1"])
def test_a_bind_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="METRICS_BIND"):
        Settings.given(metrics_bind=text)


def test_an_sslmode_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGSSLMODE", "full-trust")
    with pytest.raises(ConfigError, match="PGSSLMODE") as refused:
        load()
    assert "full-trust" not in str(refused.value)
    for text, kept in (("verify-full", "verify-full"), (" require ", "require"), ("", None)):
        monkeypatch.setenv("PGSSLMODE", text)
        assert load().sslmode == kept


def test_windows_are_microseconds() -> None:
    windows = Settings.given(tick_s=0.5, settle_s=2, dangling_s=6, lookback_s=0, stale_max_ticks=4).windows
    assert windows == Windows(500_000, 2_000_000, 6_000_000, 0, 4)


def test_the_defaults_are_the_core_s_defaults() -> None:
    assert load().windows == Windows()


def test_given_settings_look_at_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOETL_CHAIN_POPULATE", "on")
    monkeypatch.setenv("POSTGRES_HOST", "h")
    settings = Settings.given()
    assert settings.populate is Reading.ABSENT
    assert settings.host is None


def test_a_frozen_setting_cannot_be_set() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.given().tick_s = 1


def test_variables_that_change_nothing_are_found() -> None:
    environ = {
        "NOETL_CHAIN_TICKS": "1",
        "NOETL_CHAIN_TICK_S": "1",
        "NOETL_CHAIN_GOSSIP_KEY": "x",
        "HOME": "/",
    }
    assert unknown(environ) == ("NOETL_CHAIN_GOSSIP_KEY", "NOETL_CHAIN_TICKS")


def test_patterns_are_divided_by_commas_and_none_is_empty() -> None:
    assert Settings.given().exclude == ()
    assert Settings.given(exclude=" ").exclude == ()
    assert Settings.given(exclude="scratch/*, /load/? ").exclude == ("scratch/*", "/load/?")
    for wrong in ("a,,b", "a,", ",".join(["x"] * 101)):
        with pytest.raises(ConfigError, match="NOETL_CHAIN_EXCLUDE"):
            Settings.given(exclude=wrong)


def test_the_audit_takes_at_most_the_whole_time() -> None:
    assert (Settings.given().audit_share, Settings.given().audit_round_s) == (0.1, 3600)
    assert Settings.given(audit_share="0").audit_share == 0
    for wrong in ("1.1", "-0.1", "half", "1e-1"):
        with pytest.raises(ConfigError, match="NOETL_CHAIN_AUDIT_SHARE"):
            Settings.given(audit_share=wrong)


@pytest.mark.parametrize("text", ["  ", "\t", "schl\u00fcssel", "two\nlines"])
def test_a_token_that_no_header_carries_stops_the_start(text: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    for given in (Settings.given(api_token=text), Settings.given(api_token_file=str(file))):
        with pytest.raises(ConfigError, match="NOETL_CHAIN_API_TOKEN") as refused:
            given.token()
        assert text.strip() == "" or text not in str(refused.value)


def test_blanks_around_a_token_are_no_part_of_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" a b\n", encoding="utf-8")
    assert Settings.given(api_token=" a b\n").token() == "a b"
    assert Settings.given(api_token_file=str(file)).token() == "a b"
