"""The pages' design: colours that anybody can read, and at the top what a run costs, loses and lacks."""

import re

import fedcipher
import pytest
from fedcipher import _page
from fedcipher._colours import GROUNDS, MARKS, PALETTE, TEXTS, themed, variables
from fedcipher._units import duration
from fedcipher.app.overview import Live, at_a_glance, progress, waiting
from fedcipher.app.report import Report, RoundResult
from fedcipher.app.report_page import content, page
from fedcipher.federation.records import ClientRecord, RoundRecord
from fedcipher.federation.server import journal
from fedcipher.watch.app import dashboard
from fedcipher.watch.run import WatchedRun
from starlette.testclient import TestClient

SPENT = {"encrypt_seconds": 0.2, "decrypt_seconds": 0.3, "upload_bytes": 900.0}
EVIL = "<script>alert(1)</script>"


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """As WCAG 2.2 defines it."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_has_enough_contrast_on_every_ground(dark):
    for ground in GROUNDS:
        for text in TEXTS:
            assert contrast(PALETTE[text][dark], PALETTE[ground][dark]) >= 4.5, (text, ground)
    for mark in MARKS:
        assert contrast(PALETTE[mark][dark], PALETTE["page"][dark]) >= 3, mark


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#767676", "#ffffff") == pytest.approx(4.54, abs=0.005)


def test_a_pages_colours_are_the_palettes():
    shown = page(a_run())
    rest = shown
    for dark in (False, True):
        assert variables(dark) in shown
        rest = rest.replace(variables(dark), "")
    assert re.findall(r"#[0-9a-f]{6}\b", rest) == []
    assert "prefers-color-scheme: dark" in shown and "@media print" in shown


def test_only_a_pictures_styles_are_coloured_not_its_texts():
    said = '<text style="fill: #000000">#000000</text><path style="stroke: #123456"/>'
    assert themed(said) == said.replace("fill: #000000", "fill: var(--ink)")


def test_pictures_and_bars_have_a_text_in_their_place():
    shown = "".join(content(a_run(evaluated={EVIL: 0.5}), live=Live(True, 4), most=200))
    assert shown.count("<svg ") == shown.count('<svg role="img" aria-label="') == 4
    assert '<progress aria-label="Progress" value="3" max="10">' in shown and EVIL not in shown
    # A group's name that all pictures share would be there four times.
    named = re.findall(r' id="([^"]+)"', shown)
    assert len(named) == len(set(named))


def a_run(scheme="flashe", *, rounds=3, settings=None, evaluated=None, clients=None, phases=SPENT, **known):
    """The first round takes 30 s, which starts the clients, each other one 10 s."""
    made = Report.begin({"run": "mine", "rounds": 10, **(settings or {})}, fedcipher.scheme(scheme, clients=4), "", 0.0)
    clients = clients or [ClientRecord(k, k, dict(phases)) for k in range(2)]
    for k in range(1, rounds + 1):
        record = RoundRecord(k, clients=clients, wall_seconds=30.0 if k == 1 else 10.0, aggregate_seconds=0.5)
        record.elements, record.metrics = 300, {"evaluate": evaluated or {"accuracy": 0.5}}
        record.counted = known.get("counted", {"clipped": 3.0, "kept": 0.99})
        made.rounds.append(RoundResult.of(record, model="aa"))
    return made


def test_the_cost_in_time_is_that_of_a_mean_client_and_of_the_server():
    # 0.2 s + 0.3 s + 0.5 s of 10 s, of which 9 s remain.
    assert "about +11.11%" in at_a_glance(a_run())
    assert "encrypt 200 ms and decrypt 300 ms in a client, aggregate 500 ms on the server" in at_a_glance(a_run())


def test_simulated_clients_share_a_machine_and_count_each():
    # Two clients: 1 s + 0.5 s of 10 s.
    shown = at_a_glance(a_run(settings={"dataset": "digits"}))
    assert "at most +17.65%" in shown and "one after the other" in shown


def test_beside_a_plain_run_only_the_difference_is_a_cost():
    made = a_run()
    made.beside = a_run("plain", phases={"encrypt_seconds": 0.1, "decrypt_seconds": 0.2, "upload_bytes": 600.0})
    shown = at_a_glance(made)
    # 0.2 s of 10 s.
    assert ">+2.04% " in shown and ">+50.0% " in shown and "against 600 B under plain" in shown
    assert "Encryption lost nothing: the model equals the model of plain, bit for bit." in shown
    made.beside = a_run("plain", phases={**SPENT, "encrypt_seconds": 0.4})
    assert "none measured" in at_a_glance(made)


def test_bytes_are_compared_with_float32_where_there_is_no_plain_run():
    assert ">-25.0% " in at_a_glance(a_run()) and "against 1.2 kB as float32" in at_a_glance(a_run())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"phases": {}}, "no client has reported its times"),
        ({"phases": {**SPENT, "encrypt_seconds": 1e9}}, "clients claim longer times than the rounds took"),
        ({"phases": {"encrypt_seconds": 0.1}}, "no client has reported how much it sent"),
        ({"counted": {}}, "the clients&#x27; counts are encrypted, and this page has no key for them"),
        ({"counted": {"clipped": 3.0}}, "Rounding: not measured for this kind of update"),
    ],
)
def test_what_the_records_do_not_have_is_not_measured_and_the_page_says_why(change, why):
    shown = at_a_glance(a_run(**change))
    assert "not measured" in shown and why in shown


def test_the_times_of_a_simulated_accelerator_are_no_cost():
    made = a_run()
    made.lanes = 8
    assert "include the simulation of an accelerator" in at_a_glance(made)


def test_a_scheme_without_encryption_has_no_cost_and_says_so():
    assert "The scheme plain does not encrypt." in at_a_glance(a_run("plain"))


def test_precision_is_what_coding_kept_and_what_was_cut():
    shown = at_a_glance(a_run(counted={"clipped": 3.0, "kept": 0.97, "saturated": 2.0}))
    assert ">3.00% <small>per update" in shown and "1.00% of the values were cut" in shown
    assert "6 values were not finite numbers" in shown


def test_who_is_missing_is_named_with_the_last_cause():
    gone = [ClientRecord(k, k, {}, f"late {EVIL}") for k in range(4)] + [ClientRecord(9, None, {}, "no card")]
    shown = at_a_glance(a_run(clients=[ClientRecord(7, 7, dict(SPENT)), *gone]))
    assert "5 clients" in shown and "2 more clients are listed below" in shown and EVIL not in shown
    assert "client 0: not in 3 of 3 rounds, last in round 3: late &lt;script&gt;" in shown
    assert "node 9: no card" in a_run(clients=gone).rounds[0].left_out
    assert ">None " in at_a_glance(a_run())


def test_a_round_without_an_aggregate_is_at_the_top():
    made = a_run()
    made.rounds[1].unfinished = f"too few {EVIL}"
    assert "No aggregate in 1 round, last in round 2: too few &lt;script&gt;" in at_a_glance(made)


def test_the_time_that_is_left_follows_from_the_rounds_so_far():
    shown = progress(a_run(), Live(True, 4))
    assert "3 of 10 rounds" in shown and "About 1 min 10 s left, at 10 s a round" in shown
    assert "The server is running; round 4 is active. 3 rounds have ended." in shown
    assert "7 rounds of those asked for did not begin" in progress(a_run(), Live(False))
    assert "1 round has ended" in progress(a_run(rounds=1), Live(True))
    made = a_run()
    del made.settings["rounds"]
    assert "Time left: not measured" in progress(made, Live(True)) and "<progress" not in progress(made, Live(True))


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.4, "0 s"), (59.6, "1 min 0 s"), (3725, "1 h 2 min"), (float("nan"), "0 s"), (float("inf"), "277777 h 46 min")],
)
def test_a_duration_is_in_whole_units(value, said):
    assert duration(value) == said


def test_before_the_first_round_the_page_says_what_it_waits_for_and_since_when():
    assert "The run waits for round 1" in waiting(Live(True, 1, 75.0))
    assert 'Waiting for <span data-since="75">1 min 15 s</span>' in waiting(Live(True, 1, 75.0))
    assert "The run waits for the server to begin round 1" in waiting(Live(True))
    assert "The server is not running. Start it again with resume=True" in waiting(Live(False))


def test_a_dashboard_without_a_round_has_no_empty_axes(tmp_path):
    run = WatchedRun(tmp_path / "run")
    with TestClient(dashboard(run, ["testserver"])) as browser:
        assert "This page waits for the server to make keys and begin the run." in browser.get("/").text
        (tmp_path / "run").mkdir()
        begun = journal.Journal(tmp_path / "run")
        begun.begin(RoundRecord(1, number=1, planned=5))
        shown = browser.get("/").text
        begun.close()
    # There is a round, and no file that says of what.
    assert "<svg" not in shown and "<table" not in shown and "This run cannot be shown" in shown


def test_a_table_has_heads_for_columns_and_rows():
    shown = _page.table([["name", "value"], ["a", "1"]])
    assert '<th scope="col">name</th>' in shown and '<th scope="row" data-column="name">a</th>' in shown
