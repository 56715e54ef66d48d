"""The tables in the specification are the tables in the code."""

from __future__ import annotations

from pathlib import Path

from sbp2p_protocol.yamux_stream import TRANSITIONS, StreamInput, StreamState

SPEC = Path(__file__).resolve().parents[2] / "protocol" / "yamux.md"


def render_transitions() -> str:
    """Return the transitions as the table that `yamux.md` holds."""
    lines = [
        "| state | " + " | ".join(change.value for change in StreamInput) + " |",
        "|---|" + "---|" * len(StreamInput),
    ]
    for state in StreamState:
        if state is StreamState.DONE:
            continue
        cells = [
            TRANSITIONS[state, change].value if (state, change) in TRANSITIONS else "-"
            for change in StreamInput
        ]
        lines.append(f"| {state.value} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_spec_holds_the_state_table() -> None:
    table = render_transitions()
    assert table in SPEC.read_text(encoding="utf-8"), f"yamux.md should hold:\n{table}"


def test_a_done_stream_stays_done() -> None:
    assert not any(state is StreamState.DONE for state, _ in TRANSITIONS)


def test_a_peer_can_always_end_its_side() -> None:
    for state in StreamState:
        if state is not StreamState.DONE:
            assert TRANSITIONS[state, StreamInput.RECEIVE_RST] is StreamState.DONE
            assert TRANSITIONS[state, StreamInput.SEND_RST] is StreamState.DONE
