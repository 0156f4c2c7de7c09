from __future__ import annotations

from tests.deploy.serving.mutations import fuzz
from tests.deploy.serving.served_model import Server


def test_400_broken_requests_are_answered_or_refused_and_nothing_else_suffers(server: Server) -> None:
    outcome = fuzz(server.target, requests=400, seed=0)
    assert not outcome.hangs
    assert outcome.wrong_answers == 0
    assert server.process.poll() is None
    assert outcome.statuses["200"] > 10
    assert outcome.statuses["400"] > 100
    assert set(outcome.statuses) <= {"200", "400", "404", "405", "413", "501", "503", "closed"}, outcome.statuses
    assert "Traceback" not in server.log.read_text()
