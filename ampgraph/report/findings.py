"""What `check` finds in a file, as text, and in the forms that continuous integration reads: JUnit XML and SARIF."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from ..core.json_types import JsonObject
from ..core.shown import Shown, json_fields
from ..core.sketches import Html, heading, table
from ..core.version import __version__

RULES = {
    "reads": "the file is a model, whole, with data files that belong to it",
    "valid": "the format's checker and the types of all operators agree with it",
    "stored": "no stored tensor holds NaN",
    "casts": "no Cast is idle",
    "opens": "ONNX Runtime opens it with its default optimisations",
    "builds": "the target's own parser and builder take it, where --runtime names them",
    "finite": "a run, strict for ONNX or by the target's real kernels, gives finite numbers",
    "right": "such a run is within the tolerance of the reference",
}
"""Rule -> what holds where it is met, in the order in which they are looked at."""

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True)
class Finding:
    """A rule (one of `RULES`) that a file does not meet. ``level``: ``error``, or ``warning`` if it may be meant so."""

    rule: str
    level: str
    message: str
    hint: str = ""


@dataclass(frozen=True, repr=False)
class Checked(Shown):
    """The report of `check` on one file: the rules that it meets (``passed``), (rule, why) of those that could not be
    looked at (``skipped``), and the findings. ``by``: the runtime whose real kernels ran it; "" where a run was strict.
    ``engines``: what the target's builder makes of the reference, and of the file."""

    model: str
    passed: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...]
    findings: tuple[Finding, ...]
    by: str = ""
    engines: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether `check` found no error in a file; warnings may be."""
        return not any(finding.level == "error" for finding in self.findings)

    def to_dict(self) -> JsonObject:
        """What `check` found in a file, as plain data for JSON."""
        found = json_fields(self, "model", "ok", "passed", "skipped", "findings", "by")
        return found | (json_fields(self, "engines") if self.engines else {})

    def lines(self) -> list[str]:
        """The text that `check` prints, by lines: one for the file, and for each finding one with its hint below."""
        left = "".join(f"; {rule} not looked at: {why}" for rule, why in self.skipped)
        verdict = "ok" if self.ok else "wrong"
        right = f"right by real kernels of {self.by}" if self.by else "right by a strict run"
        met = ", ".join(right if rule == "right" else rule for rule in self.passed) or "nothing met"
        lines = [f"{self.model}: {verdict} ({met}{left})"]
        lines += [f"  engine: {' -> '.join(self.engines)}"] if self.engines else []
        for finding in self.findings:
            lines.append(f"  {finding.level} [{finding.rule}]: {finding.message}")
            lines += [f"  hint: {finding.hint}"] if finding.hint else []
        return lines

    def _overview(self) -> Iterable[Html]:
        """The top of the page of `check`: the verdict, and each rule with what came of it."""
        yield heading(f"{self.model}: {'ok' if self.ok else 'wrong'}")
        skipped, rows = dict(self.skipped), list[tuple[str, ...]]()
        for rule, holds in RULES.items():
            found = [
                (one.level, " ".join(filter(None, [one.message, one.hint])))
                for one in self.findings
                if one.rule == rule
            ]
            if rule in self.passed:
                found.append(("met", ""))
            if rule in skipped:
                found.append(("not looked at", skipped[rule]))
            rows += [(rule, state, said, holds) for state, said in found]
        yield table(("rule", "", "", "what it asks"), rows)


def junit(found: Sequence[Checked]) -> str:
    """JUnit XML of checked files: a suite for each file, with a case for each rule that was looked at or skipped. A
    warning is no failure; it stands in the case's output."""
    root = ElementTree.Element("testsuites", name="ampgraph check")
    for one in found:
        suite = ElementTree.SubElement(root, "testsuite", name=_xml_text(one.model))
        skipped = dict(one.skipped)
        for rule in RULES:
            findings = [finding for finding in one.findings if finding.rule == rule]
            if not (findings or rule in one.passed or rule in skipped):
                continue
            case = ElementTree.SubElement(suite, "testcase", classname=_xml_text(one.model), name=rule)
            if rule in skipped:
                ElementTree.SubElement(case, "skipped", message=_xml_text(skipped[rule]))
            for finding in findings:
                if finding.level == "error":
                    failure = ElementTree.SubElement(case, "failure", message=_xml_text(finding.message))
                    failure.text = _xml_text(finding.hint)
                else:
                    ElementTree.SubElement(case, "system-out").text = _xml_text(f"warning: {finding.message}")
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(sum(case.find("failure") is not None for case in suite)))
        suite.set("skipped", str(len(skipped)))
    ElementTree.indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{ElementTree.tostring(root, encoding="unicode")}\n'


def _xml_text(text: str) -> str:
    """A finding's text with a question mark for each character that XML cannot hold."""
    return _NO_XML.sub("?", text)


def sarif(found: Sequence[Checked]) -> str:
    """SARIF 2.1.0 (JSON) of checked files: a result for each finding, at its file."""
    rules = [{"id": rule, "shortDescription": {"text": text}} for rule, text in RULES.items()]
    results = [
        {
            "ruleId": finding.rule,
            "level": finding.level,
            "message": {"text": finding.message + (f" ({finding.hint})" if finding.hint else "")},
            "locations": [{"physicalLocation": {"artifactLocation": {"uri": one.model.replace("\\", "/")}}}],
        }
        for one in found
        for finding in one.findings
    ]
    driver = {"name": "ampgraph", "version": __version__, "rules": rules}
    schema = "https://json.schemastore.org/sarif-2.1.0.json"
    run = {"tool": {"driver": driver}, "results": results}
    return json.dumps({"$schema": schema, "version": "2.1.0", "runs": [run]}, indent=1) + "\n"
