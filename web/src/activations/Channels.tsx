/** Channels as a grid of small pictures, and one of them large. */

import { useMemo, useState } from "preact/hooks";
import { HookPoint } from "@cutaway/client";
import {
  canChange,
  type CapturedProps,
  effectGradient,
  effectOf,
  type Order,
  ordered,
  ORDERS,
  partText,
  tokensOf,
} from "./places.js";
import { ChannelGrid } from "./ChannelGrid.js";
import { Button, Choice, Pager, Slider } from "../ui/controls.js";
import { placeAt } from "../edits/edit.js";
import { tryWithout } from "../edits/live.js";
import { placeOf, planeOf } from "../measures/layout.js";
import { capturing, requestAt } from "../models/places.js";
import { pixelsOf, scaleOf } from "../pictures/colours.js";
import { Statistics } from "../ui/parts.js";
import { Legend, Picture } from "../pictures/Picture.js";
import { short } from "../ui/text.js";
import { draft } from "../state/asking.js";
import { targetText } from "../state/exchange.js";

const PAGE = 128;
/** Of a row of attention with its token, in CSS pixels. */
const TOKEN_HEIGHT = 20;

/** Shows the channels of one capture. */
export function Channels({ asked, row, ask, captured, part, axes }: CapturedProps): preact.JSX.Element {
  const gradient = useMemo(() => effectGradient(asked, captured, row), [asked, captured, row]);
  const [wish = "effect", setOrder] = useState<Order>();
  const order = wish === "effect" && !gradient ? "index" : wish; // until it is there
  const [chosen, setChosen] = useState<number | undefined>(undefined);
  const [first, setFirst] = useState(0);
  const [tile, setTile] = useState(64);
  const whole = canChange(asked, captured);
  const channels = useMemo(() => ordered(part, order, gradient), [part, order, gradient]);
  const scale = useMemo(() => scaleOf(part.values), [part]);
  const large = chosen ?? channels[0]?.index ?? 0;
  const plane = planeOf(part, large);
  const tokens = tokensOf(asked, row);
  const [height, width = 1] = plane.shape;
  const square = height === width && tokens.length === height;
  const sort = (by: Order): void => {
    setOrder(by);
    setChosen(undefined);
    setFirst(0);
    const needed = requestAt(captured.module, HookPoint.GRAD_OUTPUT);
    if (by === "effect" && !gradient) ask(capturing(draft.value, needed));
  };
  const nameOf = (index: number): string => partText(axes, part, index);
  return (
    <>
      <div class="tools">
        <span class="muted">Sorted by</span>
        <Choice
          label="Sorted by"
          of={whole ? ["index", "mean", "norm", "effect"] : ["index", "mean", "norm"]}
          names={ORDERS}
          value={order}
          onChoose={sort}
        />
        <span class="grow" />
        <Slider label="Zoom" kind="small muted" value={tile} least={24} most={192} step={8} onChange={setTile} />
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
            {...{ part, scale, tile, nameOf }}
            channels={channels.slice(first, first + PAGE)}
            chosen={large}
            onChoose={setChosen}
          />
          <Pager first={first} page={PAGE} count={channels.length} onTurn={setFirst} />
        </div>
        <figure class="large">
          <figcaption>
            {nameOf(large)}
            {gradient && <span class="muted"> effect {short(effectOf(plane, planeOf(gradient, large)))}</span>}
          </figcaption>
          <Picture
            label={`${nameOf(large)} of ${captured.name}`}
            values={plane.values}
            width={width}
            pixels={pixelsOf(plane.values, scale)}
            {...(square ? { names: { rows: tokens, columns: tokens }, rowHeight: TOKEN_HEIGHT } : {})}
            nameOf={square ? (x, y) => `${tokens[y] ?? ""} looks at ${tokens[x] ?? ""}` : undefined}
          />
          <Statistics values={plane.values} />
          {whole && (
            <Button
              text="What happens without it?"
              onClick={() => tryWithout(placeAt(captured), placeOf(part, large))}
            />
          )}
        </figure>
      </div>
    </>
  );
}
