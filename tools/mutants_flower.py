"""Removes one check of the Flower layer at a time and expects its tests to fail: `make mutants-flower`.

Names on the command line choose files: ``client outgoing``.
"""

from __future__ import annotations

import sys

from mutants import Mutant, test_files
from mutants_python import campaign, python

TESTS = test_files(
    "flower_updates",
    "flower",
    "flower_models",
    "attacks_flower",
    "parties",
    "flower_rounds",
    "flower_optimiser",
    "flower_resume",
    "attacks_oneshot",
    "oneshot",
    "numbers",
    "attacks_charter",
    "charter_documents",
    "reports",
    "analytics",
    "first_ranges",
    "ranges",
    "coding",
    "waiting",
    "codec",
    "attacks_liars",
    "coordinator",
    "weights",
    "attacks_two_worlds",
)
SOURCES = ("python/fedcipher/adapters/flower", "python/fedcipher/federation")
COMMAND = "make mutants-flower"


MUTANTS = (
    python(
        "adapters/flower/mod",
        "any message type reaches the app",
        "if messages.split_type(message.type) in allowed:",
        "if True:",
    ),
    python(
        "adapters/flower/mod", "an error travels with its text", "return refuse(msg, error, session.recorder)", "raise"
    ),
    python(
        "federation/client/egress",
        "an update leaves as numbers",
        "if numbers > _MAX_NUMBERS or text > _MAX_TEXT:",
        "if text > _MAX_TEXT:",
    ),
    python(
        "federation/client/egress",
        "an update leaves as text",
        "if numbers > _MAX_NUMBERS or text > _MAX_TEXT:",
        "if numbers > _MAX_NUMBERS:",
    ),
    python(
        "adapters/flower/mod",
        "an error reply leaves",
        "    if reply.has_error():\n        raise",
        "    if False:\n        raise",
    ),
    python("federation/round_settings", "types are not checked", "if type(value) is not kind:", "if False:"),
    Mutant(
        "ranges as small as the server likes",
        "python/fedcipher/codec.py",
        "float(np.float32(max(self.margin * spread, self._floor(bits))))",
        "float(np.float32(self.margin * spread))",
    ),
    python("federation/server/node_map", "a revoked client's update is used", "if client in revoked:", "if False:"),
    python(
        "federation/server/node_map",
        "a node takes a second client",
        "if known != client and known not in revoked:",
        "if False:",
    ),
    python("federation/server/node_map", "a node takes another's client", "if owner in connected():", "if False:"),
    python("federation/server/node_map", "a restarted node is locked out", "if owner in connected():", "if True:"),
    python(
        "federation/server/intake",
        "an update in the clear is taken",
        'if len(arrays) != 1 or arrays[0][0] != UPDATE:\n        raise PlaintextError(f"the {what}',
        'if len(arrays) != 1:\n        raise PlaintextError(f"the {what}',
    ),
    python(
        "federation/server/accepting",
        "fewer updates than the minimum",
        "        if len(added.nodes) < self._run.setup.minimum:\n",
        "        if False:\n",
    ),
    python("federation/server/asking", "too few are asked", "if 0 < len(able) < self._run.setup.minimum:", "if False:"),
    python(
        "federation/server/asking",
        "more are asked than fit",
        " if len(able) > self._run.setup.max_clients else able",
        " if False else able",
    ),
    python(
        "federation/server/intake",
        "phases of any size",
        "if name in PHASES and 0 <= value < MAX_PHASE}",
        "if name in PHASES}",
    ),
    python(
        "federation/server/intake",
        "a client that was left out does not get everything again",
        "            self._run.model.forget(node)\n",
        "            pass\n",
    ),
    python(
        "federation/server/run",
        "changed ciphertext goes on",
        '        if self.setup.opener is None:\n            raise StrategyError(\n                "the arrays of',
        '        if False:\n            raise StrategyError(\n                "the arrays of',
    ),
    python(
        "federation/server/round_close",
        "a deadline is not kept",
        "(limit if self._deadline is None else min(limit, self._deadline))",
        "limit",
    ),
    python(
        "federation/server/round_close",
        "late answers are not told of",
        "            record.late.append(reply.node)\n",
        "",
    ),
    python(
        "adapters/flower/polling",
        "all replies are asked for in one call",
        "self.together = any(",
        "self.together = True or any(",
    ),
    python(
        "adapters/flower/polling",
        "an answer of the SuperLink counts as the node's own",
        '    reply.metadata.__dict__["_src_node_id"] = node\n',
        "",
    ),
    python(
        "federation/server/polling",
        "a deadline closes a round whose SuperLink is away",
        "        if hanging:\n",
        "        if False:\n",
    ),
    python(
        "federation/refusal", "a refusal says why", "return TEXT + reference", "return TEXT + reference + str(error)"
    ),
    python(
        "adapters/flower/no_run",
        "a server without our strategy goes on",
        'if kind.partition(".")[0] != "train":',
        "if True:",
    ),
    python(
        "adapters/flower/records",
        "a refusal's code says why",
        "Error(code=CODE,",
        "Error(code=CODE if isinstance(error, FedcipherError) else 5,",
    ),
    python("federation/server/round_ids", "a number is used twice", '{"next": first + count, ', '{"next": first, '),
    python(
        "adapters/flower/mod",
        "an allowed type's reply is not checked",
        "    only_metrics(content_of(reply.content))\n",
        "",
    ),
    python(
        "federation/client/session",
        "a message of another type reaches the app",
        "if message.type != charter.types[purpose] or record is None:",
        "if record is None:",
    ),
    python(
        "federation/client/session",
        "the input of an app is not compared with the charter",
        "        check_app_inputs(message.content, charter, purpose, settings.index, "
        "without=frozenset([charter.record, CONFIG]))\n",
        "",
    ),
    python(
        "federation/client/session",
        "a round is claimed after the app has computed",
        "        model.claim(purpose)\n",
        "",
    ),
    python(
        "federation/client/session",
        "metrics leave in the clear because the charter says so",
        "allowed = {name: value for name, value in clear.items() if name in self._holder.clear}",
        "allowed = clear",
    ),
    python(
        "federation/client/frame",
        "updates are not bound to their position",
        "model=self._model.associated_data(self._purpose),",
        'model=b"",',
    ),
    python(
        "federation/client/frame",
        "an update counts with no weight",
        "share = self._lanes.weight(tally.examples) / self._charter.largest_weight",
        "share = 1.0",
    ),
    python(
        "federation/client/session",
        "an overflow is an exception where the app says so",
        '    return np.errstate(all="ignore")',
        "    return np.errstate()",
    ),
    python(
        "federation/charter",
        "another charter's digest is taken",
        "        if charter.digest != digest:",
        "        if False:",
    ),
    python(
        "federation/client/model",
        "a charter of other keys or of another scheme",
        "if (charter.key_set, charter.scheme) != ours:",
        "if False:",
    ),
    python(
        "federation/client/model",
        "reports under a common key",
        "if charter.reports and self.scheme.committee is None:",
        "if False:",
    ),
    python(
        "federation/client/model", "a missing step is skipped", "if number != self._chain.state.steps + 1:", "if False:"
    ),
    python(
        "federation/client/model",
        "other sums than the message's chain",
        "if (self._chain.state.steps, self._chain.state.last) != (self._settings.steps, self._settings.last):",
        "if False:",
    ),
    python(
        "federation/client/model",
        "sums beside a model that the server sets",
        "if steps or not initial:",
        "if not initial:",
    ),
    python(
        "federation/client/model",
        "a second step is taken back from one position",
        "if before and before[0] == now[0] and before != now:",
        "if False:",
    ),
    python(
        "federation/client/model",
        "two steps are taken back",
        "if earlier is None or earlier.steps != kept.steps - 1:",
        "if earlier is None:",
    ),
    python(
        "federation/client/model",
        "a round is answered twice",
        'if settings.round <= int(facts.get("answered", 0)):',
        "if False:",
    ),
    python("federation/client/model", "a position is evaluated twice", "if position in evaluated:", "if False:"),
    python(
        "federation/client/model",
        "the loss of an update with NaN is not a number",
        "        if any(odd):\n",
        "        if False:\n",
    ),
    python(
        "federation/client/model",
        "a model of other names",
        "if initial and initial != self.charter.names:",
        "if False:",
    ),
    python("federation/client/egress", "arrays under any name leave", "fit = keys == {UPDATE}", "fit = True"),
    python(
        "federation/client/egress",
        "any metric leaves",
        "fit = isinstance(record, Metrics) and keys <= PHASES",
        "fit = isinstance(record, Metrics)",
    ),
    python(
        "federation/client/egress",
        "a frame of another round leaves",
        "if (header.kind, header.scheme, header.round, len(header.clients)) != (Kind.UPDATE, scheme, number, 1):",
        "if (header.kind, header.scheme, len(header.clients)) != (Kind.UPDATE, scheme, 1):",
    ),
    python(
        "federation/client/egress",
        "an aggregate leaves as an update",
        "if (header.kind, header.scheme, header.round, len(header.clients)) != (Kind.UPDATE, scheme, number, 1):",
        "if (header.scheme, header.round, len(header.clients)) != (scheme, number, 1):",
    ),
    python(
        "federation/client/egress",
        "bytes leave",
        '        else:\n            raise PlaintextError(f"{key!r} of',
        '        elif not isinstance(value, bytes):\n            raise PlaintextError(f"{key!r} of',
    ),
    python("federation/round_settings", "fields that there are not", "        if unknown:\n", "        if False:\n"),
    python("federation/round_settings", "numbers out of range", "if not minimum <= value <= maximum:", "if False:"),
    python(
        "federation/round_settings",
        "digests of any length",
        "if len(made.charter) != _DIGEST or len(made.last) not in (0, _DIGEST):",
        "if False:",
    ),
    python(
        "adapters/flower/mod",
        "an app that raises is refused",
        "    except BaseException as error:\n        return AppResult.raised",
        "    except OSError as error:\n        return AppResult.raised",
    ),
    python("federation/client/app_result", "arrays of another shape", "if made.shape != given.shape:", "if False:"),
    python(
        "federation/client/app_result", "several ArrayRecords in a reply", "if len(records) != 1:", "if not records:"
    ),
    python("federation/client/reports", "a report that the charter has not", "if not charter.reports:", "if False:"),
    python("federation/server/reports", "one reader's word is a report", "if count > self._corrupt]", "if count > 0]"),
    python(
        "federation/server/query_sum", "a revoked client's answer is used", "if client in self._revoked:", "if False:"
    ),
    python(
        "federation/server/query_sum",
        "answers of any length",
        "            if header.elements != self._elements:\n",
        "            if False:\n",
    ),
    python(
        "federation/server/intake",
        "sizes are not checked",
        "                model.check_size(header.elements, counters, measured=measured)\n",
        "",
    ),
    python(
        "federation/server/intake",
        "parties are not checked",
        "                self._nodes.check(reply.node, header.clients, revoked, self._nodes_present)\n",
        "",
    ),
    python(
        "federation/server/model",
        "an update of any size",
        "        if elements > values + lanes:\n",
        "        if False:\n",
    ),
    python(
        "federation/server/round_close",
        "a quorum below the minimum",
        "max(math.ceil(self._quorum * len(made.asked)), self._minimum)",
        "math.ceil(self._quorum * len(made.asked))",
    ),
    python(
        "federation/server/round_close",
        "the SuperLink's word is a late answer",
        "            if reply.node != asked:\n",
        "            if False:\n",
    ),
    python(
        "federation/store",
        "an earlier run's charter is taken",
        'if charter.run <= int(facts.get("run", 0)):',
        "if False:",
    ),
    python("federation/store", "no policy judges a charter", "        policy.judge(charter, signature)\n", ""),
    python(
        "federation/store",
        "runs are not counted",
        "        if counts and policy.runs and not policy.vouched(charter, signature):\n",
        "        if False:\n",
    ),
    python("federation/store", "a run of next year", "        _check_date(charter.run)\n", ""),
    python(
        "federation/policy",
        "the server sets models without leave",
        "(charter.sets_models and not self.server_sets_models,",
        "(False,",
    ),
    python("federation/policy", "any optimiser", "(not self._optimiser_allowed(charter.optimiser),", "(False,"),
    python("federation/policy", "any number of numbers", "(numbers > self.most_numbers,", "(False,"),
    python("federation/policy", "any weights", "not {charter.weighted_by, ANY} & set(self.weighted_by),", "False,"),
    python("federation/policy", "coordinates of each client", "(coordinates and not self.per_client_top,", "(False,"),
    python(
        "federation/policy",
        "any signature is accepted",
        "_native.charter_signature_holds(base64.b64decode(key), charter.digest, signature)",
        "True",
    ),
    python("federation/canonical", "another encoding", "    if encode(document) != content:\n", "    if False:\n"),
    python("federation/canonical", "a field twice", "    if len(made) != len(pairs):\n", "    if False:\n"),
    python(
        "federation/chain",
        "another first model",
        "        if digest.hex() != self.charter.first:\n",
        "        if False:\n",
    ),
    python(
        "federation/chain",
        "a client in two sums of a step",
        "        if len(set(clients)) != len(clients):\n",
        "        if False:\n",
    ),
    python(
        "federation/chain",
        "a position does not know what led to it",
        "            before.position,\n            last,\n",
        "            before.position,\n",
    ),
    python(
        "federation/chain",
        "a position does not know the moments",
        '            b"".join(arrays_digest([str(k)], [x]) for k, x in enumerate(flat)),\n',
        "",
    ),
    python(
        "federation/chain",
        "sums at models of the server's count apart",
        '        if self.charter.sets_models:\n            return b"\\x01"',
        '        if False:\n            return b"\\x01"',
    ),
    python(
        "federation/chain",
        "histograms and updates of one model count apart",
        "        if self.at_first_model:\n            return",
        "        if self.at.steps == 0:\n            return",
    ),
    python(
        "federation/chain",
        "an aggregate opens at any position",
        '            model=self.associated_data("train", index),\n            memory',
        "            memory",
    ),
    python(
        "federation/answers",
        "a lane's sum of any size",
        "        if not all(clients * minimum <= number <= clients * maximum for minimum, number, maximum in found):\n",
        "        if False:\n",
    ),
    python(
        "federation/answers",
        "an answer out of range is refused, not cut",
        "    if abs(value) >= answer.largest:\n",
        "    if False:\n",
    ),
    python(
        "federation/ranges",
        "histograms of more clients than there are",
        "            if sum(histogram) != clients or min(histogram) < 0:\n",
        "            if False:\n",
    ),
    python(
        "federation/ranges",
        "one client of many sets the scale",
        "        return bins.exponent_at_rank(histogram, min(clients // _OUTLIER_RATIO, moved - 1))",
        "        return bins.exponent_at_rank(histogram, 0)",
    ),
    python(
        "federation/coding",
        "every value to the nearest step",
        "nearest = bool(self.rotated[t]) and not self.always_at_random and _unbiased(squares, step)",
        "nearest = True",
    ),
    python(
        "federation/coding",
        "no look at the errors of the nearest steps",
        "return abs(along - square) <= _MAX_BIAS * square and abs(12 * error / (step * step) - 1) <= _MAX_UNEVENNESS",
        "return square > step * step / 2",
    ),
    python(
        "federation/coding",
        "values beyond a range are lost",
        "        if over is not None:\n            over = kernels.multiplied(over, self.scales[t])\n",
        "        over = None\n",
    ),
    python(
        "federation/coding",
        "noise is applied as it is",
        "            1.0 if added <= _DAMPED_FROM *",
        "            1.0 if True or added <= _DAMPED_FROM *",
    ),
    python(
        "federation/coding",
        "zeros are rotated with others",
        "peak <= most else 1 if moved else 2",
        "peak <= most else 1",
    ),
    python(
        "federation/coding",
        "an array that did not move is not rotated",
        "peak <= most else 1 if moved else 2",
        "peak <= most or not moved else 1",
    ),
    python(
        "federation/client/model",
        "every key has a budget of privacy",
        "        charge_privacy_budget(self._holder, self.charter)\n",
        "",
    ),
    python(
        "federation/client/queries", "queries cost no privacy", "        charge_privacy_budget(holder, query)\n", ""
    ),
    python(
        "federation/client/clip_feedback",
        "a waiting answer is lost when a round is asked for again",
        "            self._save(ready, made)\n",
        "            self._save(None, made)\n",
    ),
)


if __name__ == "__main__":
    sys.exit(campaign(MUTANTS, SOURCES, TESTS, COMMAND))
