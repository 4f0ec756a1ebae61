"""The languages in which a question can be written."""

from __future__ import annotations

from cutaway.errors import Reason, error
from cutaway.programs import curl, job, python, typescript
from cutaway.programs.question import Question

LANGUAGES = {
    "python": python.program,
    "typescript": typescript.program,
    "curl": curl.program,
    "job": job.program,
}


def program_of(question: Question, language: str) -> str:
    """Returns the question as a program.

    Raises:
        InvalidArgument: ``INVALID_VALUE``, for a language that is not in `LANGUAGES`.
    """
    if language not in LANGUAGES:
        raise error(Reason.INVALID_VALUE, f"is {language!r:.40}, not one of {', '.join(LANGUAGES)}", "language")
    return LANGUAGES[language](question)
