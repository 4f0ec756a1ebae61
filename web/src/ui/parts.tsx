/** What views are made of: parts with titles, facts, heads of tables. */

import type { ComponentChildren } from "preact";
import { statisticsOf } from "../measures/index.js";
import { Button } from "./controls.js";
import { short } from "./text.js";

interface PanelProps {
  readonly id: string;
  readonly title: ComponentChildren;
  /** What stands beside the title. */
  readonly beside?: ComponentChildren;
  /** A further class. */
  readonly kind?: string;
  readonly children: ComponentChildren;
}

/** A part of a view under its title. */
export function Panel({ id, title, beside, kind = "", children }: PanelProps): preact.JSX.Element {
  return (
    <section class={`panel ${kind}`} aria-labelledby={id}>
      <div class={beside ? "tools" : ""}>
        <h2 {...{ id, tabIndex: -1 }}>{title}</h2>
        {beside}
      </div>
      {children}
    </section>
  );
}

type EmptyProps = Readonly<{ title: string; text?: string; action: string; onAct: () => void }>;

/** Why there is nothing, and the way on: a button that says `action`. */
export function Empty({ title, text, action, onAct }: EmptyProps): preact.JSX.Element {
  return (
    <section class="panel empty">
      <h2>{title}</h2>
      {text && <p class="muted">{text}</p>}
      <Button text={action} class="primary" onClick={onAct} />
    </section>
  );
}

type FactsProps = Readonly<{ facts: readonly (readonly [string, string | number | undefined])[]; kind?: string }>;

/** Names and what they stand for, side by side; without those that are undefined. `kind` is the class. */
export function Facts({ facts, kind = "facts" }: FactsProps): preact.JSX.Element {
  return (
    <dl class={kind}>
      {facts.map(
        ([name, value]) =>
          value !== undefined && (
            <div key={name + String(value)} class={name === "not finite" ? "bad" : ""}>
              <dt class="muted">{name}</dt>
              <dd>
                <bdi>{typeof value === "number" ? short(value) : value}</bdi>
              </dd>
            </div>
          ),
      )}
    </dl>
  );
}

/** Names and numbers in a line; without those that are undefined. */
export function FactLine(props: FactsProps): preact.JSX.Element {
  return <Facts kind="line-of-facts small" {...props} />;
}

type TableProps = Readonly<{
  heads: readonly ComponentChildren[];
  rows: readonly ComponentChildren[][];
  kind?: string;
}>;

/**
 * A table whose first cells name its rows; a number is shown in a few digits. Where it is too wide, it is scrolled, by keys
 * too. `kind` is a further class.
 */
export function Table({ heads, rows, kind = "" }: TableProps): preact.JSX.Element {
  const words = heads.map((head) => (typeof head === "string" ? head : undefined));
  return (
    <div class="wide" tabIndex={0}>
      <table class={`plain ${kind}`}>
        <thead>
          <tr>
            {heads.map((head, index) => (head ? <th key={index} scope="col" children={head} /> : <td key={index} />))}
          </tr>
        </thead>
        <tbody>
          {rows.map(([name, ...cells], index) => (
            <tr key={index}>
              <th scope="row">{name}</th>
              {cells.map((cell, at) => (
                <td key={at} data-head={words[at + 1]} class={typeof cell === "number" ? "number" : ""}>
                  {typeof cell === "number" ? short(cell) : cell}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
/** Shows what there is to say of some numbers. */
export function Statistics({ values }: { values: ArrayLike<number> }): preact.JSX.Element {
  const { least, mean, most: largest, deviation, norm, zeros, notFinite } = statisticsOf(values);
  const share = `${(100 * zeros).toFixed(1)} %`;
  const facts = { least, mean, largest, deviation, norm, zeros: share, "not finite": notFinite || undefined };
  return <FactLine facts={Object.entries(facts)} />;
}
