/** Another token in the place of one of a text. */

import { ask, examplesIn, type Exchange } from "../state/index.js";
import { Button, Form, Select, TextField, useFields } from "../ui/index.js";

type Props = Readonly<{ asked: Exchange; row: number; texts: readonly string[] }>;

/** Takes a token of the text that was sent and what to write there, and asks about that text; nothing for other inputs. */
export function Swap({ asked: { question }, row, texts }: Props): preact.JSX.Element | null {
  const given = examplesIn(question);
  const text = given[row];
  const places = typeof text === "string" ? placesIn(text, texts) : [];
  const [{ chosen, written }, field] = useFields({ chosen: 0, written: "" });
  const place = places.find(({ at }) => at === chosen) ?? places[0];
  if (typeof text !== "string" || !place) return null;
  const choices = places.map(({ at }) => [at, texts[at] ?? ""] as const);
  const swap = (): void => {
    const swapped = text.slice(0, place.start) + written + text.slice(place.end);
    void ask({ inputs: given.with(row, swapped) });
  };
  return (
    <Form kind="tools small" onDone={swap}>
      <Select label="Instead of" of={choices} value={place.at} onChange={field("chosen").onChange} />
      <TextField label="write" {...field("written")} />
      <Button text="Swap, and ask" type="submit" />
    </Form>
  );
}

/** Where a token is in a text, by its number. */
type Place = Readonly<{ at: number; start: number; end: number }>;

/** Returns the tokens that are found in a text, one behind the other, without the marks of tokenizers. */
export function placesIn(text: string, tokens: readonly string[]): Place[] {
  let from = 0;
  return tokens.flatMap((token, at) => {
    const bare = token.replace(/^(##|▁|Ġ)|<\/w>$/g, "").trim();
    const start = text.toLowerCase().indexOf(bare.toLowerCase(), from);
    if (bare === "" || start < 0) return [];
    from = start + bare.length;
    return [{ at, start, end: from }];
  });
}
