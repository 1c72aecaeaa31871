"""Removes one check of guard, log and consent at a time and expects its tests to fail: `make mutants-guard`.

Names on the command line choose files: ``app_api log``.
"""

from __future__ import annotations

import sys

from mutants import test_files
from mutants_python import campaign, python

TESTS = test_files("app_api", "decisions", "consent", "log", "verify")
SOURCES = ("python/fedcipher/guard", "python/fedcipher/federation")
COMMAND = "make mutants-guard"


MUTANTS = (
    python(
        "guard/app_api",
        "a call needs no token",
        "if not hmac.compare_digest(given, self.token.encode()):",
        "if False:",
    ),
    python(
        "guard/app_api",
        "calls come by any method",
        'if call is None or scope["method"] != "POST":',
        "if call is None:",
    ),
    python("guard/app_api", "a call of any size", "if len(held) > _MAX_CALL:", "if False:"),
    python("guard/app_api", "an app replies twice", "if self._reply is not None:", "if False:"),
    python(
        "guard/app_api",
        "two replies at once",
        "if len(given.messages_list) != 1 or len(given.message_object_trees) != 1:",
        "if False:",
    ),
    python("guard/app_api", "a tree of any depth", "if depth > _MAX_DEPTH or", "if"),
    python(
        "guard/app_api",
        "a reply of any number of parts",
        "if depth > _MAX_DEPTH or len(names) > most:",
        "if depth > _MAX_DEPTH:",
    ),
    python("guard/app_api", "a reply of any size", "if reply.size > self._limits.reply:", "if False:"),
    python(
        "guard/app_api",
        "a part that was not announced",
        "if reply is None or given.object_id not in reply.expected:",
        "if reply is None:",
    ),
    python(
        "guard/app_api",
        "a part with another digest",
        "if hashlib.sha256(given.object_content).hexdigest() != given.object_id:",
        "if False:",
    ),
    python(
        "guard/app_api",
        "a reply with missing parts",
        "if reply is None or reply.expected - set(reply.parts):",
        "if reply is None:",
    ),
    python("guard/app_api", "a reply of another type", "if not isinstance(made, Message):", "if False:"),
    python("guard/app_api", "a state of any size", "if len(state) <= self._limits.state:", "if True:"),
    python("guard/app_api", "the app sees the node's key", "if name.startswith(_OWN_SETTINGS)]:", "if False]:"),
    python(
        "guard/app_api",
        "the app sees the node's settings of the run",
        '    context.ClearField("run_config")\n',
        "",
    ),
    python("guard/consent", "any app asks", "        self._rules.check_app(app.package)\n", ""),
    python("guard/consent", "any settings", "        self._rules.check_settings(app.changed)\n", ""),
    python(
        "guard/consent",
        "a denied run begins",
        "if (self._folder / _DENIED / name).exists():\n            raise",
        "if False:\n            raise",
    ),
    python("guard/consent", "people agree to another document", "if charter.digest != digest:", "if False:"),
    python("guard/consent", "any epsilon", "            self._rules.check_privacy(charter)\n", "            pass\n"),
    python("guard/consent", "people are not asked", "if not self._rules.people_agree:", "if True:"),
    python("guard/consent", "any number of requests", ">= _MAX_REQUESTS:", ">= _MAX_REQUESTS**9:"),
    python(
        "guard/consent",
        "consent to one app is consent to all",
        'digest_of(b"fedcipher consent 1", digest, app.digest)',
        'digest_of(b"fedcipher consent 1", digest, b"")',
    ),
    python(
        "guard/consent",
        "consent to one charter is consent to all",
        'digest_of(b"fedcipher consent 1", digest, app.digest)',
        'digest_of(b"fedcipher consent 1", b"", app.digest)',
    ),
    python("guard/consent", "a name decides several requests", "if len(matching) != 1:", "if not matching:"),
    python("guard/policy", "any package", "if self.apps and package not in self.apps:", "if False:"),
    python("guard/policy", "any change of settings", "if text not in self.run_settings)", "if False)"),
    python("guard/policy", "privacy of any epsilon", "if epsilon > self.most_epsilon:", "if False:"),
    python("guard/policy", "no privacy", "if stated is None:", "if False:"),
    python("guard/policy", "no list and no people", "if not self.people_agree and not self.apps:", "if False:"),
    python("guard/policy", "others may change the rules", "read_trusted(path, _MAX_BYTES)", "path.read_bytes()"),
    python("guard/day_counts", "any number a day", "if most and number > most:", "if False:"),
    python(
        "guard/day_counts",
        "a restart begins a new day",
        "        write_whole(self._path, json.dumps(counts).encode())\n",
        "",
    ),
    python("guard/day_counts", "a clock that goes back begins a new day", '"")) >= today', '"")) == today'),
    python("guard/log", "another key goes on", "if not parsed.head.holds(self._key.verify_key):", "if False:"),
    python(
        "guard/log",
        "an older copy goes on",
        "if self._parsed is not None and not _continues(self._parsed, parsed):",
        "if False:",
    ),
    python(
        "guard/log",
        "a log that lost its head begins again",
        "if self._parsed is not None or (self._folder / _LINES).exists():",
        "if False:",
    ),
    python("guard/log", "lines twice", "if not once or", "if True or"),
    python("guard/log", "heads reveal facts", '"salt": secrets.token_hex(16)', '"salt": "00" * 16'),
    python("guard/log", "a line is not on disk", "                os.fsync(file.fileno())\n", ""),
    python("guard/log", "a cut line is not mended", "        self._write_line(parsed.missing)\n", ""),
    python("guard/log", "lines of any number", "if len(whole) != head.size:", "if False:"),
    python("guard/log", "lines of any text", "if whole[-1] != newest or tree.root() != head.root:", "if False:"),
    python("guard/log", "half a line", "    elif rest:\n", "    elif False:\n"),
    python("guard/log", "digits in another form", 'if found["head"] != head.encode().hex():', "if False:"),
    python(
        "guard/audit",
        "a log that names another key",
        'if not parsed.head.holds(bytes.fromhex(start.facts["verify"])):',
        "if False:",
    ),
    python("guard/audit", "a log without a start", "if start.kind != START or not", "if False and not"),
    python("guard/audit", "lines out of place", "if line.n != number or", "if False and"),
    python("guard/audit", "odd facts", "elif not _fits(line.facts, rules):", "elif False:"),
    python("guard/audit", "frames without a charter", 'line.facts["charter"] not in accepted:', "False:"),
    python("guard/audit", "two frames of a number", 'if line.facts["round"] in rounds:', "if False:"),
    python(
        "guard/audit",
        "a key of another client",
        'elif known[0].verify_keys.get(client, b"").hex() != verify:',
        "elif False:",
    ),
    python("guard/audit", "two logs of one key", "if _covers(longer, log.parsed.head):", "if True:"),
    python("guard/audit", "a head of other lines", "elif not _covers(log, head):", "elif False:"),
    python("guard/audit", "a missing end", "elif head.size > log.parsed.head.size:", "elif False:"),
    python("guard/audit", "a log begun again", "elif head.log != log.parsed.head.log:", "elif False:"),
    python(
        "guard/audit",
        "a head that the key did not sign",
        'elif not head.holds(bytes.fromhex(log.start["verify"])):',
        "elif False:",
    ),
    python("guard/audit", "different charters", "if len(charters) > 1:", "if False:"),
    python("guard/audit", "different sums", "if not _agree(known, opened):", "if False:"),
    python(
        "guard/audit", "a frame of another model", 'if any(o.bound != facts["bound"] for _, o in inside):', "if False:"
    ),
    python("guard/audit", "a frame that the log lacks", "if at not in frames and", "if False and"),
    python("guard/audit", "a withdrawn sum counts", "if not o.withdrawn]\n", "]\n"),
    python("guard/audit", "a run with other sums", "if stored.get(number, clients) != clients:", "if False:"),
    python("guard/receipt", "a head that the key did not sign", "if not self.head.holds(self.verify):", "if False:"),
    python("guard/receipt", "a line beyond the head", "if not 0 <= self.line.n < self.head.size:", "if False:"),
    python(
        "guard/receipt",
        "a line that the head does not cover",
        "if not _native.log_includes(self.head.size, self.head.root, self.line.n, self.line.raw, proof):",
        "if False:",
    ),
    python("federation/client/consent", "a question with other fields", "if set(record) - _FIELDS:", "if False:"),
    python(
        "federation/client/consent",
        "the site's policy is not asked",
        "    holder.policy().judge(Charter.named(asked.document, asked.charter), asked.signature)\n",
        "",
    ),
    python(
        "federation/client/session",
        "a round needs no consent",
        "if not self._agreed(settings.charter, settings.document):",
        "if False:",
    ),
    python(
        "federation/client/session",
        "a query needs no consent",
        "if isinstance(document, bytes) and not self._agreed(digest_of(document), document):",
        "if False:",
    ),
    python("federation/server/consent", "too few agree", "if len(agreed) < run.setup.minimum:", "if False:"),
    python(
        "federation/server/consent",
        "a site that refuses is asked again and again",
        "if node not in agreed and refusals[node] < _MAX_REFUSALS]",
        "if node not in agreed]",
    ),
)


if __name__ == "__main__":
    sys.exit(campaign(MUTANTS, SOURCES, TESTS, COMMAND))
