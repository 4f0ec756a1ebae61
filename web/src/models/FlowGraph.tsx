/** The flow of data as a graph, from the tensors of a pass: drawn when a person wants it, as that takes two passes. */

import type { ModelDetail } from "@cutaway/client";
import { signal } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { client } from "../state/index.js";
import { Button, Failure, Panel, shapeText, Slider, useCall } from "../ui/index.js";
import { type Box, type Drawing, Flow, MOST, near } from "./flow.js";
import { type ModuleNode, turned } from "./tree.js";

type Drawn = Readonly<{ flow: Flow; draw: typeof import("./layout.js") }>;

/** What was read last, and of which model. */
const known = signal<{ of: ModelDetail; read: Drawn } | undefined>(undefined);

async function readFlow({ model }: ModelDetail): Promise<Drawn> {
  const asked = client.value.model(model?.name.replace(/^models\//, "") ?? "", { operators: true, dataFlow: true });
  const [detail, draw] = await Promise.all([asked, import("./layout.js")]);
  return { flow: new Flow(detail), draw };
}

type ChosenProps = Readonly<{ chosen: string | undefined; onChoose: (row: ModuleNode) => void }>;

/** Shows the graph, or a button that draws it. */
export function FlowGraph({ detail, ...others }: ChosenProps & { detail: ModelDetail }): preact.JSX.Element {
  const [{ busy, failure }, start] = useCall<Drawn>();
  const read = known.value?.of === detail ? known.value.read : undefined;
  const draw = async (): Promise<Drawn> => {
    const read = await readFlow(detail);
    known.value = { of: detail, read };
    return read;
  };
  return (
    <Panel id="graph" title="The flow of data" kind="graph">
      {read ? (
        <Graph {...read} {...others} />
      ) : (
        <>
          <div class="actions">
            <Button text={busy ? "Drawing…" : "Draw it"} disabled={busy} onClick={() => start(draw())} />
            <p class="muted small">
              Which module or operator gives a tensor to which, residual connections included. It takes two passes of
              the model’s own example.
            </p>
          </div>
          {failure && <Failure error={failure} />}
        </>
      )}
    </Panel>
  );
}

function Graph({ flow, draw, chosen, onChoose }: Drawn & ChosenProps): preact.JSX.Element {
  const [open, setOpen] = useState(() => flow.openAtFirst());
  const [scale, setScale] = useState(1);
  const all = useMemo(() => flow.drawn(open), [flow, open]);
  const shown = [chosen ?? "", ...flow.around(chosen ?? "")].find((each) => all.boxes.has(each));
  const around = all.boxes.size > MOST ? shown : undefined; // the whole does not depend on what is chosen
  const drawing = useMemo(() => near(all, around), [all, around]);
  const { row } = all.boxes.get(shown ?? "") ?? {};
  const [outer] = row ? flow.around(row.address) : [];
  const turn = (each: Pick<ModuleNode, "address">): void => setOpen(turned(open, each));
  return (
    <>
      <div class="tools">
        {row && opens(row) && <Button text={`Open ${row.name}`} onClick={() => turn(row)} />}
        {outer && <Button text={`Close ${outer}`} class="quiet" onClick={() => turn({ address: outer })} />}
        <span class="grow" />
        <Slider label="Size" value={scale} least={0.2} most={1} step={0.05} onChange={setScale} />
      </div>
      {drawing.boxes.size < all.boxes.size && (
        <p class="muted">
          {drawing.boxes.size} of {all.boxes.size.toLocaleString("en")}, the nearest to{" "}
          {shown === undefined ? "the input" : <bdi class="mono">{shown}</bdi>}; choose another one in the tree to see
          what is around that.
        </p>
      )}
      <Canvas {...{ drawing, draw, shown, scale, onChoose }} onOpen={turn} />
    </>
  );
}

/** Whether there is more inside than the one operator of which most layers consist. */
const opens = ({ inside }: ModuleNode): boolean => inside.length > 1;

type CanvasProps = Pick<Drawn, "draw"> &
  Readonly<{ drawing: Drawing; shown: string | undefined; scale: number }> &
  Readonly<Record<"onChoose" | "onOpen", (row: ModuleNode) => void>>;

/** The keys that lead along edges: to what a box gives tensors to, or takes them from. */
const ALONG: Readonly<Record<string, readonly [number, number]>> = { ArrowDown: [0, 1], ArrowUp: [1, 0] };

/** How far from the middle a box is in sight, as a share of the side. */
const NEAR = 0.45;

const MARKER = { id: "arrow", refX: 8, refY: 4, markerWidth: 8, markerHeight: 8, orient: "auto" };

/** A size as a style. */
function size(width: number, height: number): Record<string, string> {
  return { width: `${width}px`, height: `${height}px` };
}

function Canvas({ drawing, draw, shown, scale, onChoose, onOpen }: CanvasProps): preact.JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  const { width, height, places, paths } = useMemo(() => draw.layoutOf(drawing), [draw, drawing]);
  const { WIDTH, HEIGHT } = draw;
  const [first] = [...drawing.boxes].flatMap(([key, { row }]) => (row ? [key] : []));
  useEffect(() => {
    const [view, at] = [box.current, places.get(shown ?? first ?? "")];
    if (!view || !at) return;
    const [x, y] = [at.x * scale - view.clientWidth / 2, at.y * scale - view.clientHeight / 2];
    const isFar = Math.abs(x - view.scrollLeft) > NEAR * view.clientWidth;
    if (isFar || Math.abs(y - view.scrollTop) > NEAR * view.clientHeight) view.scrollTo(x, shown === undefined ? 0 : y);
    if (view.contains(document.activeElement))
      view.querySelector<HTMLElement>("[aria-pressed=true]")?.focus({ preventScroll: true });
  }, [shown, places]);
  const onKeyDown = (event: preact.TargetedKeyboardEvent<HTMLElement>): void => {
    const here = places.get(shown ?? "");
    const [from = 0, to = 0] = ALONG[event.key] ?? [];
    const next =
      from === to ? undefined : drawing.edges.find((pair) => pair[from] === shown && pair[to] !== shown)?.[to];
    const side = { ArrowRight: 1, ArrowLeft: -1 }[event.key] ?? 0;
    const beside = [...places]
      .filter(([, { x, y }]) => here && y === here.y && side * (x - here.x) > 0)
      .sort(([, one], [, other]) => side * (one.x - other.x));
    const { row } = drawing.boxes.get(next ?? beside[0]?.[0] ?? "") ?? {};
    if (!(event.key in ALONG) && !side) return;
    event.preventDefault();
    if (row) onChoose(row);
  };
  const one = (key: string, { row }: Box): preact.JSX.Element => {
    const { x, y } = places.get(key) ?? { x: 0, y: 0 };
    const style = { ...size(WIDTH, HEIGHT), transform: `translate(${x - WIDTH / 2}px, ${y - HEIGHT / 2}px)` };
    if (!row) return <span key={key} class="box end" title={key} style={style} children={<bdi>{key}</bdi>} />;
    const { address, name, kind, type, shapes } = row;
    const isChosen = key === shown;
    return (
      <button
        key={key}
        class={`box ${kind} ${opens(row) ? "opens" : ""}`}
        title={address}
        aria-pressed={isChosen}
        tabIndex={isChosen || (shown === undefined && key === first) ? 0 : -1}
        style={style}
        onClick={() => onChoose(row)}
        onDblClick={() => opens(row) && onOpen(row)}
      >
        <span class="mono tail">
          <bdi dir="ltr">{kind === "operator" ? name.replace(/#0$/, "") : address || name}</bdi>
        </span>
        <span class="muted small">{[...(kind === "module" ? [type] : []), shapeText(shapes[0] ?? [])].join(" ")}</span>
      </button>
    );
  };
  return (
    <div class="flow" ref={box} role="group" aria-label="The flow of data" tabIndex={-1} onKeyDown={onKeyDown}>
      <div style={size(width * scale, height * scale)}>
        <div class="scaled" style={{ ...size(width, height), transform: `scale(${scale})` }}>
          <svg {...{ width, height }} aria-hidden="true">
            <marker {...MARKER} markerUnits="userSpaceOnUse">
              <path d="M0 0l8 4-8 4z" />
            </marker>
            {paths.map(([from, to, d]) => {
              const kind = [from, to].includes(shown ?? "\n") ? "chosen" : "";
              return <path key={`${from}\n${to}`} class={kind} d={d} marker-end="url(#arrow)" />;
            })}
          </svg>
          {[...drawing.boxes].map(([key, each]) => one(key, each))}
        </div>
      </div>
    </div>
  );
}
