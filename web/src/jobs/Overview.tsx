/** What is to be said of all rows: verdicts, problems, labels against predictions, bad rows, provenance. */

import { Verdict } from "@cutaway/client";
import { quantile } from "d3-array";
import { histogramOf, statisticsOf } from "../measures/index.js";
import { Spark } from "../pictures/Bars.js";
import { FactLine, Facts, Panel, short, Table, VerdictBadge } from "../ui/index.js";
import { Cards, RowLink } from "./Cards.js";
import { columnsOf, type JobFolder } from "./folder.js";
import { attributionsOf, countsOf, inOrder, type JobRow, rows, text, verdictOf } from "./rows.js";

/** The length of each list of rows. */
export const LISTED = 8;

/** The most classes in the matrix of labels and predictions. */
const MOST_CLASSES = 20;

/** The most warnings, and bad rows with one reason, that are listed. */
const MOST_WARNINGS = 10;
const MOST_BAD = 3;

/** The most rows with a dot of their label and their prediction. */
const MOST_DOTS = 1000;

/** Returns the cells of one kind and attribution, of rows that have one. */
function cellsOf(folder: JobFolder, kind: string, attribution: string): unknown[] {
  const [column] = columnsOf(folder, [kind], attribution);
  return column ? folder.lines.map(({ cells }) => cells[column.name]).filter((cell) => cell != null) : [];
}

const DELTAS = ["Median |delta|", "99 % |delta|", "Largest |delta|", "Spread of |delta|"];
const OUTCOMES = ["Attribution", "Verdicts", "Largest error", ...DELTAS];

/** How many rows each attribution has with which verdict, and how far it is from completeness. */
export function Outcomes({ folder }: { folder: JobFolder }): preact.JSX.Element | null {
  const attributions = [...attributionsOf(folder)];
  if (attributions.length === 0) return null;
  return (
    <Panel id="outcomes" title="Verdicts and deltas">
      <p class="muted small">
        Each attribution is compared with a reference computed from raw hook outputs. The delta is the difference
        between the sum of the attributions and the change of the target.
      </p>
      <Table
        heads={OUTCOMES}
        rows={attributions.map(([name, { method = "", layer }]) => {
          const verdicts = countsOf(cellsOf(folder, "verdict", name).map(verdictOf));
          const errors = cellsOf(folder, "largest_error", name).map(Number).filter(Number.isFinite);
          const deltas = cellsOf(folder, "convergence_delta", name).map(Number).filter(Number.isFinite).map(Math.abs);
          const skipped = cellsOf(folder, "skipped", name).filter(Boolean).length;
          const spread = histogramOf(deltas);
          const isNamed = method.toLowerCase() === name.replaceAll("_", "").toLowerCase();
          return [
            <>
              <bdi>{name}</bdi>{" "}
              <span class="muted small">{[!isNamed && method, layer].filter(Boolean).join(" of ")}</span>
            </>,
            <>
              {verdicts.map(([verdict, count]) => (
                <div key={verdict}>
                  <VerdictBadge verdict={verdict} brief /> {count.toLocaleString("en")}
                </div>
              ))}
              {verdicts.length === 0 && <span class="muted">not checked</span>}
              {skipped > 0 && <div class="muted">{`skipped ${skipped.toLocaleString("en")}`}</div>}
            </>,
            verdicts.length ? errors.reduce((most, error) => Math.max(most, error), 0) : "–",
            ...[0.5, 0.99, 1].map((share) => quantile(deltas, share) ?? "–"),
            spread ? <Spark heights={spread.heights} ends={[`1e${spread.low}`, `1e${spread.high}`]} /> : "–",
          ];
        })}
      />
    </Panel>
  );
}

/** The outcome of a check, of one row or of successive ones. */
type Finding = Readonly<{ attribution: string; verdict: Verdict; error: number; reason: string; rows: JobRow[] }>;

/** Returns outcomes that are problems: those that disagree first, each with the largest error first. */
function findingsOf(folder: JobFolder): Finding[] {
  const findings = [...attributionsOf(folder).keys()].flatMap((attribution) => {
    const columns = ["verdict", "largest_error", "reason"].map((kind) => columnsOf(folder, [kind], attribution)[0]);
    const successive: Finding[] = [];
    for (const row of rows.value) {
      const [verdict, error, reason] = columns.map((column) => column && row.line.cells[column.name]);
      const outcome = { attribution, verdict: verdictOf(verdict), error: Number(error), reason: text(reason) };
      const last = successive.at(-1);
      if (row.problem) continue;
      if (last && Object.entries(outcome).every(([part, value]) => Object.is(last[part as keyof Finding], value)))
        last.rows.push(row);
      else successive.push({ ...outcome, rows: [row] });
    }
    return successive;
  });
  const sizeOf = ({ error }: Finding): number => (Number.isNaN(error) ? Infinity : error);
  return [Verdict.DISAGREES, Verdict.INCONCLUSIVE].flatMap((verdict) =>
    findings
      .filter((finding) => finding.verdict === verdict)
      .sort((one, other) => (sizeOf(one) === sizeOf(other) ? 0 : sizeOf(other) - sizeOf(one))),
  );
}

/** Rows whose attributions disagree with their reference, or could not be compared with it. */
export function Findings({ folder }: { folder: JobFolder }): preact.JSX.Element | null {
  const findings = findingsOf(folder).slice(0, LISTED);
  if (findings.length === 0) return null;
  const wrong = findings
    .filter(({ verdict }) => verdict === Verdict.DISAGREES)
    .flatMap(({ rows: [first] }) => first ?? []);
  return (
    <Panel id="findings" title="Rows with problems">
      <p class="muted small">
        Attributions that disagree with their reference, or could not be compared with it, those with the largest error
        first.
      </p>
      <Table
        heads={["Row", "Attribution", "Verdict", "Error", "Reason"]}
        rows={findings.map(({ attribution, verdict, error, reason, rows: [first, ...others] }) => [
          <>
            {first && <RowLink row={first} />}
            {others.length > 0 && (
              <span class="muted small">
                {" – "}
                <bdi class="short">{others.at(-1)?.id}</bdi>, {others.length + 1} rows with the same outcome
              </span>
            )}
          </>,
          <bdi>{attribution}</bdi>,
          <VerdictBadge verdict={verdict} brief />,
          error,
          <bdi class="long">{reason}</bdi>,
        ])}
      />
      <Cards folder={folder} rows={[...new Set(wrong)]} />
    </Panel>
  );
}

/** Returns rows with a label and a predicted class. */
function labelledRows(): JobRow[] {
  return rows.value.filter(
    ({ label, prediction, value, problem }) => label && prediction && value === undefined && !problem,
  );
}

/** How far predicted numbers are from the labels. */
export function Residuals(): preact.JSX.Element | null {
  const pairs = rows.value.flatMap(({ value, residual = NaN, problem }) =>
    value === undefined || !Number.isFinite(residual) || problem ? [] : [{ value, residual, label: value + residual }],
  );
  if (pairs.length === 0) return null;
  const residuals = pairs.map(({ residual }) => residual);
  const [own, sizes] = [statisticsOf(residuals), statisticsOf(residuals.map(Math.abs))];
  const [labels, told] = [statisticsOf(pairs.map(({ label }) => label)), statisticsOf(pairs.map(({ value }) => value))];
  const [low, high] = [Math.min(labels.least, told.least), Math.max(labels.most, told.most)];
  const [meanSquare, spread] = [own.norm ** 2 / own.count, labels.deviation ** 2];
  const at = (number: number): number => (100 * (number - low)) / (high - low || 1);
  const every = Math.ceil(pairs.length / MOST_DOTS);
  return (
    <Panel id="residuals" title="Labels and predictions">
      <FactLine
        facts={[
          ["rows", pairs.length],
          ["mean |residual|", sizes.mean],
          ["root of the mean square", Math.sqrt(meanSquare)],
          ["mean residual", own.mean],
          ["R²", spread > 0 ? 1 - meanSquare / spread : undefined],
        ]}
      />
      <p class="muted small">
        A residual is the label minus the prediction. A dot for {every > 1 ? `one row in ${every}` : "each row"}: its
        label to the right, its prediction upwards, both from {short(low)} to {short(high)}. On the line they are equal.
      </p>
      <svg class="scatter" viewBox="-2 -2 104 104" role="img" aria-label="predictions by label">
        <line x1={0} y1={100} x2={100} y2={0} />
        {pairs
          .filter((_, index) => index % every === 0)
          .map(({ value, label }, index) => (
            <circle key={index} cx={at(label)} cy={100 - at(value)} r={1} />
          ))}
      </svg>
    </Panel>
  );
}

/** How often rows of each label are predicted as which class. */
export function Confusion(): preact.JSX.Element | null {
  const labelled = labelledRows();
  if (labelled.length === 0) return null;
  const totals = countsOf(labelled.map(({ label }) => label));
  const all = countsOf([...labelled.map(({ label }) => label), ...labelled.map(({ prediction }) => prediction)]);
  const names = inOrder(all.slice(0, MOST_CLASSES).map(([name]) => name));
  const counts = new Map(countsOf(labelled.map(({ label, prediction }) => JSON.stringify([label, prediction]))));
  const countOf = (label: string, prediction: string): number => counts.get(JSON.stringify([label, prediction])) ?? 0;
  const confused = [...counts].filter(([pair]) => labelOf(pair)[0] !== labelOf(pair)[1]).slice(0, LISTED);
  return (
    <Panel id="confusion" title="Labels and predictions">
      <p class="muted small">
        One line for each label, one column for each predicted class
        {all.length > names.length && `; the most frequent of ${all.length} classes`}.
      </p>
      <Table
        kind="matrix"
        heads={["", ...names.map((name) => <bdi class="short">{name}</bdi>), "rows"]}
        rows={names.map((label) => {
          const total = totals.find(([name]) => name === label)?.[1] ?? 0;
          return [
            <bdi class="short">{label}</bdi>,
            ...names.map((prediction) => {
              const count = countOf(label, prediction);
              const share = count ? 10 + 35 * Math.sqrt(count / total) : 0; // more would hide the number in the dark
              const tone = label === prediction ? "good" : "bad";
              return (
                <div
                  class={count ? "" : "muted"}
                  title={`${count} of ${total} rows labelled ${label}: predicted ${prediction}`}
                  style={{ background: `color-mix(in srgb, var(--${tone}) ${share}%, transparent)` }}
                >
                  {count}
                </div>
              );
            }),
            total,
          ];
        })}
      />
      {confused.length > 0 && (
        <p class="muted small">
          Most often confused:{" "}
          <bdi>{confused.map(([pair, count]) => `${labelOf(pair).join(" → ")} (${count})`).join(", ")}</bdi>
        </p>
      )}
    </Panel>
  );
}

function labelOf(pair: string): [string, string] {
  return JSON.parse(pair) as [string, string];
}

/** Why rows are bad, and what the model warned of. */
export function BadRows({ folder }: { folder: JobFolder }): preact.JSX.Element | null {
  const bad = rows.value.filter(({ problem }) => problem);
  const reasons = countsOf(bad.map(({ line }) => text(line.cells["error"])));
  const warnings = countsOf(folder.lines.flatMap(({ cells }) => (cells["warnings"] ?? []) as string[]));
  if (reasons.length + warnings.length === 0) return null;
  return (
    <Panel id="bad" title={reasons.length ? "Bad rows" : "Warnings"}>
      <Table
        heads={["Reason", "Rows", "Examples"]}
        rows={[
          ...reasons.map(([reason, count]) => [
            <code>{reason}</code>,
            count,
            bad
              .filter(({ line }) => text(line.cells["error"]) === reason)
              .slice(0, MOST_BAD)
              .map((row) => (
                <div key={row.number} class="long">
                  <RowLink row={row} /> <bdi>{text(row.line.cells["error_message"])}</bdi>
                </div>
              )),
          ]),
          ...warnings
            .slice(0, MOST_WARNINGS)
            .map(([warning, count]) => ["warning", count, <bdi class="long">{warning}</bdi>]),
        ]}
      />
    </Panel>
  );
}

/** What the results were computed from, and with. */
export function Provenance({ folder: { manifest } }: { folder: JobFolder }): preact.JSX.Element {
  const { weights_sha256: weights, fingerprint, data_type: type, device, seed, versions } = manifest;
  const facts = [
    ["weights", weights || "–"],
    ["data", fingerprint],
    ["computed", `in ${type} on ${device}, seed ${seed}`],
    ["versions", Object.entries(versions).flat().join(" ")],
  ] as const;
  return (
    <Panel id="provenance" title="Where it comes from">
      <Facts facts={facts} />
    </Panel>
  );
}

/** Returns the shares of rows that are predicted as labelled, and of checked attributions that agree, as facts. */
export function sharesOf(folder: JobFolder): (readonly [string, string | undefined])[] {
  const labelled = labelledRows();
  const right = labelled.filter(({ wrong }) => !wrong).length;
  const verdicts = columnsOf(folder, ["verdict"]).flatMap(({ name }) =>
    folder.lines.map(({ cells }) => verdictOf(cells[name])).filter(Boolean),
  );
  const agreeing = verdicts.filter((verdict) => verdict === Verdict.AGREES).length;
  const share = (part: number, all: number): string | undefined =>
    all ? `${short((100 * part) / all, 3)} %` : undefined;
  return [
    ["predicted as labelled", share(right, labelled.length)],
    ["attributions checked", verdicts.length ? verdicts.length.toLocaleString("en") : undefined],
    ["of these agree", share(agreeing, verdicts.length)],
  ];
}
