/** Texts that a language model writes: how long they may be, and what came back, with the replay of it. */

import { create } from "@bufbuild/protobuf";
import type { ModelDetail } from "@cutaway/client";
import { FinishReason, GenerateSchema, type InspectResponse } from "@cutaway/contract/inspection_pb";
import type { ComponentChildren, TargetedKeyboardEvent } from "preact";
import { useState } from "preact/hooks";
import { Checks } from "../explanations/Explanation.js";
import { alter, askedParts, draft, type Exchange } from "../state/index.js";
import { NumberField, percent } from "../ui/index.js";
import { writes } from "./ways.js";

/** Lets a person choose how many tokens the model writes, where it is one that does. */
export function Writing({ detail }: { detail: ModelDetail }): preact.JSX.Element | null {
  const { generate } = askedParts(draft.value);
  if (!generate && !writes(detail)) return null;
  const write = (maxNewTokens = 0): void => {
    if (maxNewTokens === 0) alter({ generate: undefined });
    else if (generate) alter({ generate: { ...generate, maxNewTokens } });
    else alter({ generate: create(GenerateSchema, { maxNewTokens }), ...ONE_PASS });
  };
  return (
    <NumberField label="Tokens to write" value={generate?.maxNewTokens} empty="none" least={1} whole onChange={write} />
  );
}

/** The parts of a question that are about one pass, and do not go with a text. */
const ONE_PASS = {
  attributions: undefined,
  inputGradients: undefined,
  target: undefined,
  sweep: undefined,
  attacks: undefined,
};

const ENDS: Readonly<Record<FinishReason, string>> = {
  [FinishReason.UNSPECIFIED]: "still being written",
  [FinishReason.LENGTH]: "as long as it may be",
  [FinishReason.END]: "ended by the model",
  [FinishReason.STOP]: "ended by a stop of the question",
};

/** Shows the text of one example, beside the one without the edits of the question. */
export function Written({ asked, row }: { asked: Exchange; row: number }): preact.JSX.Element {
  const { question, reply, whole } = asked;
  const { finishReasons, uneditedTexts, replay } = reply.message;
  const tokens = tokensOf(reply.message, row);
  const before = uneditedTexts[row];
  const compares = before !== undefined || (question.compare && !whole);
  return (
    <div class="written">
      <div class={compares ? "sides" : ""}>
        <Text tokens={tokens}>
          {compares && "With the edits: "}
          {tokens.length} tokens, {ENDS[finishReasons[row] ?? FinishReason.UNSPECIFIED]}
        </Text>
        {compares && (
          <figure>
            <blockquote>{before !== undefined && <bdi>{before}</bdi>}</blockquote>
            <figcaption class="muted small">
              Without the edits{before === undefined && ": comes after the other"}
            </figcaption>
          </figure>
        )}
      </div>
      {replay && <Checks checks={[replay]} row={row} />}
      <details>
        <summary>Tokens and their probabilities</summary>
        <ol class="tokens">
          {tokens.map((token, step) => (
            <li key={step}>
              <bdi class="piece">{nameOf(token)}</bdi>
              <small class="muted number">{percent(token.probability)}</small>
            </li>
          ))}
        </ol>
      </details>
    </div>
  );
}

type TextProps = Readonly<{ tokens: readonly Token[]; children: ComponentChildren }>;

/** Shows the tokens as one text, shaded by their probabilities; a pointer or the arrow keys tell that of each. */
function Text({ tokens, children }: TextProps): preact.JSX.Element {
  const [last, setLast] = useState(0);
  const at = Math.min(last, tokens.length - 1);
  const press = (event: TargetedKeyboardEvent<HTMLElement>): void => {
    const to = event.currentTarget.children[at + (STEPS[event.key] ?? NaN)];
    if (!(to instanceof HTMLElement)) return;
    to.focus();
    event.preventDefault();
  };
  const told = (token: Token): string => `${nameOf(token)}: ${percent(token.probability)}`;
  return (
    <figure>
      <blockquote>
        <bdi onKeyDown={press}>
          {tokens.map((token, index) => (
            <span
              key={index}
              title={told(token)}
              tabIndex={index === at ? 0 : -1}
              style={{ background: `color-mix(in srgb, var(--accent) ${40 * token.probability}%, transparent)` }}
              onFocus={() => setLast(index)}
              onPointerEnter={() => setLast(index)}
            >
              {token.text}
            </span>
          ))}
        </bdi>
      </blockquote>
      <figcaption class="muted small">
        <span>{children}</span>
        <output class="number">{tokens[at] && told(tokens[at])}</output>
      </figcaption>
    </figure>
  );
}

const STEPS: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1 };

/** Returns the text of one example, as far as it is written; "" if none is. */
export function textOf(reply: InspectResponse, row: number): string {
  return tokensOf(reply, row)
    .map(({ text }) => text)
    .join("");
}

/** A token that was written. Its text is empty where a character is not complete. */
type Token = Readonly<{ id: bigint; text: string; probability: number }>;

function nameOf({ id, text }: Token): string {
  return text || `#${id}`;
}

/** Returns the tokens of one example, which may have ended before others. */
function tokensOf({ generated }: InspectResponse, row: number): Token[] {
  return generated.flatMap(({ tokens, texts, logProbabilities }) => {
    const id = tokens[row] ?? -1n;
    return id < 0n ? [] : [{ id, text: texts[row] ?? "", probability: Math.exp(logProbabilities[row] ?? 0) }];
  });
}
