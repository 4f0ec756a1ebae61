/** Channels as a grid of small pictures, and one of them large. */

import { useMemo, useState } from "preact/hooks";
import { effectOf, gradientKey, type Order, ORDERS, ordered, withGradient, tokensOf } from "./places.js";
import { ChannelGrid } from "./ChannelGrid.js";
import { wanted } from "../edits/live.js";
import { go } from "../state/route.js";
import { Pager, Choice } from "../app/controls.js";
import { layoutOf, planeOf } from "../measures/layout.js";
import { type Part, partOf } from "../measures/numbers.js";
import { pixelsOf, scaleOf } from "../pictures/colours.js";
import { Statistics } from "../pictures/Statistics.js";
import { Legend, Picture } from "../pictures/Picture.js";
import { short } from "../pictures/text.js";
import { targetText, type ViewProps } from "../state/asked.js";

const PAGE = 128;

/** Shows the channels of one capture. */
export function Channels({
  asked,
  row,
  ask,
  place,
  part,
}: ViewProps & { place: string; part: Part }): preact.JSX.Element {
  const [order, setOrder] = useState<Order>("index");
  const [chosen, setChosen] = useState<number | undefined>(undefined);
  const [first, setFirst] = useState(0);
  const other = asked.reply.captures[gradientKey(place)];
  const gradient = useMemo(() => (other ? partOf(other, row) : undefined), [other, row]);
  const channels = useMemo(() => ordered(part, order, gradient), [part, order, gradient]);
  const scale = useMemo(() => scaleOf(part.values), [part]);
  const layout = layoutOf(part.shape);
  const large = chosen ?? channels[0]?.index ?? 0;
  const plane = planeOf(part, large);
  const tokens = tokensOf(asked, row);
  const square = layout.kind === "planes" && layout.height === layout.width && tokens.length === layout.height;
  return (
    <>
      <div class="tools">
        <span class="muted">Sorted by</span>
        <Choice
          label="Sorted by"
          of={gradientKey(place) ? ["index", "mean", "norm", "effect"] : ["index", "mean", "norm"]}
          names={ORDERS}
          value={order}
          onChoose={(each) => {
            setOrder(each);
            setChosen(undefined);
            if (each === "effect" && !gradient) ask({ captures: withGradient(asked.question.captures, place) });
          }}
        />
        <span class="grow" />
        <Legend scale={scale} />
      </div>
      {order === "effect" && (
        <p class="muted small">
          Gradient × activation, summed over a channel: what the target, {targetText(asked, row)}, would lose, to first
          order, if the channel were zero.
        </p>
      )}
      <div class="channels">
        <div>
          <ChannelGrid
            part={part}
            scale={scale}
            channels={channels.slice(first, first + PAGE)}
            chosen={large}
            onChoose={setChosen}
          />
          <Pager first={first} page={PAGE} count={channels.length} onTurn={setFirst} />
        </div>
        <figure class="large">
          <figcaption>
            Channel {large}
            {gradient && <span class="muted"> effect {short(effectOf(plane, planeOf(gradient, large)))}</span>}
          </figcaption>
          <Picture
            label={`Channel ${large} of ${place}`}
            values={plane.values}
            width={plane.shape[1] ?? 1}
            pixels={pixelsOf(plane.values, scale)}
            {...(square ? { nameOf: (x: number, y: number) => `${tokens[y] ?? ""} looks at ${tokens[x] ?? ""}` } : {})}
          />
          <Statistics values={plane.values} />
          {place.endsWith("@output") && (
            <button
              onClick={() => {
                wanted.value = { place: place.replace("@output", ""), verb: "zero", amount: 0, axis: 1, index: large };
                go("edits");
              }}
            >
              What happens without it?
            </button>
          )}
        </figure>
      </div>
    </>
  );
}
