/** What is to be said of all rows: verdicts, problems, labels against predictions, bad rows, provenance. */

import { Verdict } from "@cutaway/client";
import { extent, flatRollup, max, mean, quantile, sort } from "d3-array";
import { scaleLinear } from "d3-scale";
import { histogramOf, statisticsOf } from "../measures/index.js";
import { Spark } from "../pictures/Bars.js";
import { FactLine, Facts, Panel, short, Table, VerdictBadge } from "../ui/index.js";
import { Cards, RowLink } from "./Cards.js";
import type { JobFolder } from "./folder.js";
import { attributionsOf, countsOf, inOrder, type JobRow, type Outcome, rows, text } from "./rows.js";

/** The length of each list of rows. */
export const LISTED = 8;

/** The most classes in the matrix of labels and predictions. */
const MOST_CLASSES = 20;

/** The most warnings, and bad rows with one reason, that are listed. */
const MOST_WARNINGS = 10;
const MOST_BAD = 3;

/** The most rows with a dot of their label and their prediction. */
const MOST_DOTS = 1000;

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
        rows={attributions.map(([name, { method = "", layer }], at) => {
          const outcomes = rows.value.flatMap((row) => row.outcomes[at] ?? []);
          const verdicts = countsOf(outcomes.map(({ verdict }) => verdict).filter(Boolean));
          const errors = outcomes.map(({ error }) => error).filter(Number.isFinite);
          const deltas = outcomes.map(({ delta }) => Math.abs(delta)).filter(Number.isFinite);
          const skipped = outcomes.filter((outcome) => outcome.skipped).length;
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
            verdicts.length ? (max(errors) ?? 0) : "–",
            ...[0.5, 0.99, 1].map((share) => quantile(deltas, share) ?? "–"),
            spread ? <Spark heights={spread.heights} ends={[`1e${spread.low}`, `1e${spread.high}`]} /> : "–",
          ];
        })}
      />
    </Panel>
  );
}

/** The outcome of one row, or of successive ones. */
type Finding = Readonly<{ outcome: Omit<Outcome, "delta">; rows: JobRow[] }>;

/** Returns outcomes that are problems: those that disagree first, each with the largest error first. */
function findingsIn(all: readonly JobRow[]): Finding[] {
  const good = all.filter(({ problem }) => !problem);
  const findings = (good[0]?.outcomes ?? []).flatMap((_, at) => {
    const successive: Finding[] = [];
    for (const row of good) {
      const { delta: __, ...outcome } = row.outcomes[at] as Outcome;
      const last = successive.at(-1);
      if (JSON.stringify(last?.outcome) === JSON.stringify(outcome)) last?.rows.push(row);
      else successive.push({ outcome, rows: [row] });
    }
    return successive;
  });
  return [Verdict.DISAGREES, Verdict.INCONCLUSIVE].flatMap((verdict) => {
    const own = findings.filter(({ outcome }) => outcome.verdict === verdict);
    return sort(own, ({ outcome: { error } }) => (Number.isNaN(error) ? -Infinity : -error));
  });
}

/** Rows whose attributions disagree with their reference, or could not be compared with it. */
export function Findings({ folder }: { folder: JobFolder }): preact.JSX.Element | null {
  const findings = findingsIn(rows.value).slice(0, LISTED);
  if (findings.length === 0) return null;
  const wrong = findings.filter(({ outcome }) => outcome.verdict === Verdict.DISAGREES);
  return (
    <Panel id="findings" title="Rows with problems">
      <p class="muted small">
        Attributions that disagree with their reference, or could not be compared with it, those with the largest error
        first.
      </p>
      <Table
        kind="paragraphs"
        heads={["Row", "Attribution", "Verdict", "Error", "Reason"]}
        rows={findings.map(({ outcome: { attribution, verdict, error, reason }, rows: [first, ...others] }) => [
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
      <Cards folder={folder} rows={[...new Set(wrong.flatMap(({ rows: [first] }) => first ?? []))]} />
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
  const meanSquare = mean(pairs, ({ residual }) => residual ** 2) ?? NaN;
  const spread = statisticsOf(pairs.map(({ label }) => label)).deviation ** 2;
  const [low = 0, high = 0] = extent(pairs.flatMap(({ label, value }) => [label, value]));
  const at = scaleLinear([low, high], [0, 100]);
  const every = Math.ceil(pairs.length / MOST_DOTS);
  return (
    <Panel id="residuals" title="Labels and predictions">
      <FactLine
        facts={[
          ["rows", pairs.length],
          ["mean |residual|", mean(pairs, ({ residual }) => Math.abs(residual))],
          ["root of the mean square", Math.sqrt(meanSquare)],
          ["mean residual", mean(pairs, ({ residual }) => residual)],
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
  const counts = flatRollup(
    labelled,
    ({ length }) => length,
    ({ label }) => label,
    ({ prediction }) => prediction,
  );
  const confused = counts.filter(([label, prediction]) => label !== prediction);
  const most = sort(confused, ([, , count]) => -count).slice(0, LISTED);
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
              const [, , count = 0] = counts.find(([one, other]) => one === label && other === prediction) ?? [];
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
      {most.length > 0 && (
        <p class="muted small">
          Most often confused:{" "}
          <bdi>{most.map(([label, prediction, count]) => `${label} → ${prediction} (${count})`).join(", ")}</bdi>
        </p>
      )}
    </Panel>
  );
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
        kind="paragraphs"
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
export function shares(): (readonly [string, string | undefined])[] {
  const labelled = labelledRows();
  const checked = rows.value.flatMap(({ outcomes }) => outcomes.filter(({ verdict }) => verdict));
  const share = (part: readonly unknown[], all: readonly unknown[]): string | undefined =>
    all.length ? `${short((100 * part.length) / all.length, 3)} %` : undefined;
  return [
    [
      "predicted as labelled",
      share(
        labelled.filter(({ wrong }) => !wrong),
        labelled,
      ),
    ],
    ["attributions checked", checked.length ? checked.length.toLocaleString("en") : undefined],
    [
      "of these agree",
      share(
        checked.filter(({ verdict }) => verdict === Verdict.AGREES),
        checked,
      ),
    ],
  ];
}
