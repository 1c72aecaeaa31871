"""The decisions of a site's people, and the rules for apps."""

import json
from collections import Counter

import fedcipher
import numpy as np
import pytest
from fedcipher import Codec, keys
from fedcipher.cli import main
from fedcipher.errors import CharterError, ParameterError, StateError
from fedcipher.federation.server.run import ServerRun
from fedcipher.federation.server.setup import RunSetup
from fedcipher.guard import consent
from fedcipher.guard.consent import AppOfRun, Consents
from fedcipher.guard.day_counts import DayCounts
from fedcipher.guard.policy import AppRules, load_rules

PACKAGE = "a" * 64
APP = AppOfRun(PACKAGE, "us/app 1.0", {"lr": 0.1, "epochs": 3}, {"lr": 0.1})
ANY = AppRules(run_settings=("*",))


@pytest.fixture
def charter(tmp_path):
    return charter_of(tmp_path)


def charter_of(folder, **options):
    scheme = fedcipher.scheme("bfv", clients=4, **options)
    made = keys.save(scheme.keygen(4), scheme, folder / "keys")
    run = ServerRun(RunSetup(made, out=folder / "run"))
    run.begin(["a"], [np.zeros(10, np.float32)], 1)
    return run.charter


def test_a_run_waits_until_people_agree(tmp_path, charter):
    consents = Consents(tmp_path, ANY)
    asked = consents.of(APP)
    assert not asked.given(charter.digest, charter.encode())
    (request,) = consents.all()
    assert (request.decision, request.package, request.changed) == ("waiting", PACKAGE, ["lr"])
    assert request.settings == {"lr": "0.1", "epochs": "3"} and request.document["run"] == charter.run
    assert consents.decide(request.name[:6], agree=True).name == request.name
    assert asked.given(charter.digest, charter.encode()) and asked.given(charter.digest, b"")


@pytest.mark.parametrize(
    "other",
    [
        AppOfRun("b" * 64, APP.name, APP.settings, APP.changed),
        AppOfRun(PACKAGE, APP.name, {"lr": 0.2, "epochs": 3}, APP.changed),
        AppOfRun(PACKAGE, APP.name, {"lr": 0.1, "epochs": 3, "more": True}, APP.changed),
        AppOfRun(PACKAGE, APP.name, {"lr": 0.1, "epochs": "3"}, APP.changed),
    ],
    ids=["package", "value", "setting", "type"],
)
def test_consent_is_for_one_app_and_its_settings(tmp_path, charter, other):
    consents = Consents(tmp_path, ANY)
    consents.of(APP).given(charter.digest, charter.encode())
    consents.decide(next(consents.all()).name, agree=True)
    assert not consents.of(other).given(charter.digest, charter.encode())


def test_consent_is_for_one_charter(tmp_path, charter):
    consents = Consents(tmp_path, ANY)
    consents.of(APP).given(charter.digest, charter.encode())
    consents.decide(next(consents.all()).name, agree=True)
    other = charter_of(tmp_path / "other")
    assert not consents.of(APP).given(other.digest, other.encode())


def test_people_see_the_document_that_the_digest_names(tmp_path, charter):
    """A server that shows a harmless charter beside the digest of another one is refused."""
    consents = Consents(tmp_path, ANY)
    with pytest.raises(CharterError, match="digest"):
        consents.of(APP).given(bytes(32), charter.encode())
    with pytest.raises(CharterError, match="not seen"):
        consents.of(APP).given(charter.digest, b"")
    assert not list(consents.all())


def test_a_denied_run_is_refused_also_after_consent(tmp_path, charter):
    consents = Consents(tmp_path, ANY)
    consents.of(APP).given(charter.digest, charter.encode())
    name = next(consents.all()).name
    for agree in (True, False):
        consents.decide(name, agree=agree)
    with pytest.raises(CharterError, match="denied"):
        consents.of(APP).given(charter.digest, charter.encode())
    consents.decide(name, agree=True)
    assert consents.of(APP).given(charter.digest, b"")


def test_a_server_cannot_fill_the_disk_with_requests(tmp_path, charter, monkeypatch):
    monkeypatch.setattr(consent, "_MAX_REQUESTS", 3)
    consents = Consents(tmp_path, ANY)
    for k in range(3):
        assert not consents.of(AppOfRun(f"{k:064}", "a", {}, {})).given(charter.digest, charter.encode())
    with pytest.raises(CharterError, match="3 requests wait"):
        consents.of(APP).given(charter.digest, charter.encode())
    consents.decide(next(consents.all()).name, agree=False)
    assert not consents.of(APP).given(charter.digest, charter.encode())


def test_a_name_that_fits_no_request_or_several_is_an_error(tmp_path, charter):
    consents = Consents(tmp_path, ANY)
    for k in range(17):
        consents.of(AppOfRun(f"{k:064}", "a", {}, {})).given(charter.digest, charter.encode())
    # Of 17 names in hexadecimal, two begin with the same digit.
    ((shared, _),) = Counter(request.name[0] for request in consents.all()).most_common(1)
    for name in ("", "zz", "../../x", shared):
        with pytest.raises(ParameterError, match="requests have a name"):
            consents.decide(name, agree=True)


def test_a_damaged_request_is_left_out_and_said(tmp_path, charter, caplog):
    consents = Consents(tmp_path, ANY)
    consents.of(APP).given(charter.digest, charter.encode())
    (tmp_path / "requests" / "bad.json").write_text('{"name": 1}')
    assert len(list(consents.all())) == 1 and "cannot be read" in caplog.text


def test_listed_apps_begin_without_people_and_others_do_not(tmp_path, charter):
    rules = AppRules(apps=(PACKAGE,), run_settings=("lr=0.1",), people_agree=False)
    consents = Consents(tmp_path, rules)
    assert consents.of(APP).given(charter.digest, charter.encode())
    with pytest.raises(CharterError, match="do not list the app"):
        consents.of(AppOfRun("b" * 64, "x", {}, {})).given(charter.digest, charter.encode())
    changed = AppOfRun(PACKAGE, "x", {"lr": 9.0}, {"lr": 9.0})
    with pytest.raises(CharterError, match=r"changes settings \['lr=9.0'\]"):
        consents.of(changed).given(charter.digest, charter.encode())


def test_people_decide_about_changed_settings_unless_the_rules_list_some(tmp_path, charter):
    assert not Consents(tmp_path, AppRules()).of(APP).given(charter.digest, charter.encode())
    for rules in (AppRules(run_settings=("epochs=9",)), AppRules(apps=(PACKAGE,), people_agree=False)):
        with pytest.raises(CharterError, match="changes settings"):
            Consents(tmp_path, rules).of(APP).given(charter.digest, charter.encode())


def test_rules_can_demand_privacy(tmp_path, charter):
    pytest.importorskip("dp_accounting", reason="the extra [dp] is not installed")
    from fedcipher.dp import Privacy

    rules = AppRules(run_settings=("*",), most_epsilon=4.0)
    with pytest.raises(CharterError, match="demand differential privacy"):
        Consents(tmp_path, rules).of(APP).given(charter.digest, charter.encode())
    for epsilon, fits in ((8.0, False), (2.0, True)):
        privacy = Privacy.for_epsilon(epsilon, delta=1e-5, rounds=10, clip=1.0)
        folder = tmp_path / str(epsilon)
        private = charter_of(folder, min_contributions=3, codec=Codec(bits=12, privacy=privacy))
        asked = Consents(folder, rules).of(APP)
        if fits:
            assert not asked.given(private.digest, private.encode())
        else:
            with pytest.raises(CharterError, match="epsilon of"):
                asked.given(private.digest, private.encode())


@pytest.mark.parametrize(
    "wrong",
    [
        {"apps": ("xyz",)},
        {"people_agree": False},
        {"app_seconds": 0.0},
        {"app_seconds": 1.0, "answer_every": 2.0},
        {"run_settings": ("lr",)},
        {"environment": ("A",)},
        {"data": ("relative",)},
    ],
)
def test_rules_that_cannot_be_meant_are_refused(wrong):
    with pytest.raises(ParameterError):
        AppRules(**wrong)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{}",
        '{"fedcipher_guard": 2}',
        '{"fedcipher_guard": 1, "nothing": 1}',
        '{"fedcipher_guard": 1, "apps": 1}',
    ],
)
def test_a_wrong_file_of_rules_is_refused(tmp_path, content):
    path = tmp_path / "guard.json"
    path.write_text(content)
    with pytest.raises(ParameterError, match="rules"):
        load_rules(path)


def test_rules_that_others_may_change_are_refused(tmp_path):
    path = tmp_path / "guard.json"
    path.write_text('{"fedcipher_guard": 1}')
    assert load_rules(path) == AppRules()
    path.chmod(0o666)
    with pytest.raises(ParameterError, match="other users"):
        load_rules(path)


def test_a_days_messages_are_counted_on_disk(tmp_path, monkeypatch):
    path = tmp_path / "day.json"
    for _ in range(3):
        DayCounts(path).add("rounds", 3)
    with pytest.raises(CharterError, match="3 rounds today"):
        DayCounts(path).add("rounds", 3)
    DayCounts(path).add("queries", 3)
    DayCounts(path).add("rounds", 0)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "day": "2000-01-01"}))
    DayCounts(path).add("rounds", 1)
    # A clock that goes back does not give more.
    path.write_text(json.dumps({**json.loads(path.read_text()), "day": "9999-01-01"}))
    with pytest.raises(CharterError):
        DayCounts(path).add("rounds", 1)
    for damaged in ("x", "[]", "1"):
        path.write_text(damaged)
        with pytest.raises(StateError, match="damaged"):
            DayCounts(path).add("rounds", 1)


def test_the_commands_show_and_decide(tmp_path, charter, capsys, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    folder = ["--folder", str(tmp_path / "guard")]
    assert main(["guard", "list", *folder]) == 0 and "no run has asked" in capsys.readouterr().out
    consents = Consents(tmp_path / "guard", ANY)
    consents.of(APP).given(charter.digest, charter.encode())
    name = next(consents.all()).name
    assert main(["guard", "list", *folder]) == 0
    shown = capsys.readouterr().out
    assert name in shown and "lr = 0.1 (changed by the run)" in shown and "epochs = 3 (the app's default)" in shown
    assert main(["guard", "approve", name[:8], *folder]) == 0 and "agreed" in capsys.readouterr().out
    assert consents.of(APP).given(charter.digest, b"")
    assert main(["guard", "deny", name, *folder]) == 0
    assert main(["guard", "approve", "nothing", *folder]) != 0
    assert "0 requests" in capsys.readouterr().err
    assert main(["guard", "rules", "--write"]) == 0 and main(["guard", "rules"]) == 0
    assert '"people_agree": true' in capsys.readouterr().out
