"""`fedcipher policy` and `fedcipher charter`: what a site allows, and what a run asks for."""

import json
import re
import stat

import pytest
from fedcipher import cli, errors
from fedcipher.federation.policy import Policy, load_policy
from fedcipher.federation.server.run_folder import read_run
from test_curves import Run


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDCIPHER_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("FEDCIPHER_POLICY", raising=False)
    return tmp_path / "home"


def shown(capsys, *command):
    # What a run before has shown is not the command's.
    capsys.readouterr()
    assert cli.main(list(map(str, command))) == 0
    return capsys.readouterr().out


def test_the_default_is_shown_written_and_never_overwritten(home, capsys):
    said = shown(capsys, "policy")
    assert f"{home / 'policy.json'}: missing, so the default is in force" in said
    assert json.loads(said[said.index("{") : said.rindex("}") + 1]) == json.loads(json.dumps(Policy().to_values()))
    shown(capsys, "policy", "--write")
    written = home / "policy.json"
    assert load_policy(written) == Policy() and stat.S_IMODE(written.stat().st_mode) == 0o600
    written.write_text('{"fedcipher_policy": 1, "runs": 9}')
    said = shown(capsys, "policy")
    assert "in force" in said and '"runs": 9' in said and "missing" not in said
    assert cli.main(["policy", "--write"]) == 2
    assert "exists: change it with an editor" in capsys.readouterr().err
    assert json.loads(written.read_text())["runs"] == 9


def test_another_place_and_a_file_that_is_no_policy(home, capsys, monkeypatch, tmp_path):
    place = tmp_path / "elsewhere" / "ours.json"
    monkeypatch.setenv("FEDCIPHER_POLICY", str(place))
    # A file that is named has to be there.
    assert cli.main(["policy"]) == 2
    capsys.readouterr()
    assert str(place) in shown(capsys, "policy", "--write") and not home.exists()
    assert f"{place}: in force" in shown(capsys, "policy")
    place.write_text('{"fedcipher_policy": 1, "allow_everything": true}')
    assert cli.main(["policy"]) == 2
    assert "it has no field allow_everything" in capsys.readouterr().err


def test_no_number_of_a_policy_is_larger_than_those_that_it_is_compared_with():
    numbers = {name for name, value in Policy().to_values().items() if type(value) in (int, float)}
    for name in numbers - {"fedcipher_policy"}:
        with pytest.raises(errors.ParameterError, match=f"^{name} must be"):
            Policy.parse({"fedcipher_policy": 1, name: 10**400})


def test_a_charter_is_printed_to_be_compared_and_listed(home, capsys, tmp_path):
    run = Run(tmp_path)
    charter = read_run(run.folder).charter
    said = shown(capsys, "charter", run.folder)
    document = json.loads(said[: said.rindex("}") + 1])
    assert document["answers"]["evaluate"][1]["name"] == "hits" and document["run"] == charter.run
    assert f"SHA-256 of the charter: {charter.digest.hex()}\nthis site's policy allows it\n" in said
    home.mkdir()
    (home / "policy.json").write_text('{"fedcipher_policy": 1, "only_listed": true}')
    refused = shown(capsys, "charter", run.folder)
    assert "only charters that are listed" in refused and "allows it" not in refused
    (digest,) = re.findall(r"SHA-256 of the charter: ([0-9a-f]{64})", refused)
    (home / "policy.json").write_text(json.dumps({"fedcipher_policy": 1, "only_listed": True, "accept": [digest]}))
    assert "this site's policy allows it" in shown(capsys, "charter", run.folder)
    assert cli.main(["charter", str(home)]) == 2
