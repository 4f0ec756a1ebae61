/** What every view shows: a question, and what came back. */

import type { Inspection, ModelDetail, Question } from "@cutaway/client";

/** A question with its answer. */
export interface Asked {
  /** The model that was asked, with its module tree. */
  readonly model: ModelDetail;
  readonly question: Question;
  readonly reply: Inspection;
  /** Milliseconds from the call to the decoded reply, as this page saw them. */
  readonly milliseconds: number;
}

/** What every view takes. */
export interface ViewProps {
  readonly asked: Asked;
  /** The example that is shown, from 0. */
  readonly row: number;
  /** Asks again with these parts of the question changed; a newer call ends the one before. */
  readonly ask: (change: Partial<Question>) => void;
}
