/** Texts that a language model writes: how long they may be, and what came back, with the replay of it. */

import { create } from "@bufbuild/protobuf";
import type { ModelDetail } from "@cutaway/client";
import { FinishReason, GenerateSchema, type InspectResponse } from "@cutaway/contract/inspection_pb";
import { Checks } from "../explanations/Explanation.js";
import { alter, draft } from "../state/asking.js";
import { askedParts } from "../state/draft.js";
import type { Exchange } from "../state/exchange.js";
import { NumberField } from "../ui/controls.js";
import { percent } from "../ui/text.js";
import { comparedIn } from "../ui/verdicts.js";

/** What transformers calls the classes of models that write texts. */
const WRITER = /(ForCausalLM|LMHeadModel|ForConditionalGeneration)$/;

/** Lets a person choose how many tokens the model writes, where it is one that does. */
export function Writing({ detail: { modules } }: { detail: ModelDetail }): preact.JSX.Element | null {
  const { generate } = askedParts(draft.value);
  if (!generate && !WRITER.test(modules[0]?.type ?? "")) return null;
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
const ONE_PASS = { attributions: undefined, inputGradients: undefined, target: undefined };

const ENDS: Readonly<Record<FinishReason, string>> = {
  [FinishReason.UNSPECIFIED]: "still being written",
  [FinishReason.LENGTH]: "as long as it may be",
  [FinishReason.END]: "ended by the model",
  [FinishReason.STOP]: "ended by a stop of the question",
};

/** Shows the text of one example, and the one without the edits of the question. */
export function Written({ asked: { reply }, row }: { asked: Exchange; row: number }): preact.JSX.Element {
  const { finishReasons, uneditedTexts, replay } = reply.message;
  const tokens = tokensOf(reply.message, row);
  const before = uneditedTexts[row];
  return (
    <figure class="written">
      <blockquote>
        <bdi>{textOf(reply.message, row)}</bdi>
      </blockquote>
      <figcaption class="muted small">
        {tokens.length} tokens, {ENDS[finishReasons[row] ?? FinishReason.UNSPECIFIED]}
      </figcaption>
      {before !== undefined && (
        <>
          <blockquote>
            <bdi>{before}</bdi>
          </blockquote>
          <p class="muted small">without the edits</p>
        </>
      )}
      {replay && <Checks compared={comparedIn({ checks: [replay] }, row)} />}
      <details>
        <summary>Tokens and their probabilities</summary>
        <ol class="tokens">
          {tokens.map(({ id, text, probability }, step) => (
            <li key={step}>
              <bdi class="piece">{text || `#${id}`}</bdi>
              <small class="muted number">{percent(probability)}</small>
            </li>
          ))}
        </ol>
      </details>
    </figure>
  );
}

/** Returns the text of one example, as far as it is written; "" if none is. */
export function textOf(reply: InspectResponse, row: number): string {
  return tokensOf(reply, row)
    .map(({ text }) => text)
    .join("");
}

/** Returns the tokens of one example, which may have ended before others. */
function tokensOf({ generated }: InspectResponse, row: number): { id: bigint; text: string; probability: number }[] {
  return generated.flatMap(({ tokens, texts, logProbabilities }) => {
    const id = tokens[row] ?? -1n;
    return id < 0n ? [] : [{ id, text: texts[row] ?? "", probability: Math.exp(logProbabilities[row] ?? 0) }];
  });
}
