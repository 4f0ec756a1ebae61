/** What the tensors of all rows have in common: important features, mean attributions by class, activations by layer. */

import { Tokens } from "../explanations/Values.js";
import { type Numbers, type Part, statisticsOf } from "../measures/index.js";
import { Spark } from "../pictures/Bars.js";
import { scaleOf } from "../pictures/colours.js";
import { NumberField, Panel, Select, shapeText, short, Table, useFields } from "../ui/index.js";
import { Cards, HeatMiniature, titleOf } from "./Cards.js";
import { type Column, columnsOf, type JobFolder, type Sample, sizesOf, tensorIn } from "./folder.js";
import { countsOf, inOrder, pictured, rows } from "./rows.js";
import {
  type Dot,
  dotsOf,
  type Explained,
  importancesOf,
  LEVELS,
  levelsOf,
  limitOf,
  meanPicture,
  tokenMeans,
  unitsOf,
} from "./statistics.js";

/** The most classes, those most often predicted, with means of their own. */
const MOST_CLASSES = 10;
const MOST_FEATURES = 20;
const MOST_DOTS = 300;
/** Tokens at each end of a list, how often each must occur, and how many dead units are named. */
const MOST_TOKENS = 8;
const LEAST_COUNT = 3;
const MOST_DEAD = 12;
const MOST_ROWS = 8;

type Props = Readonly<{ folder: JobFolder; samples: readonly Sample[] }>;

/** Whether attributions are of an input that is a number, or a vector of features. */
function isOfFeatures(column: Column): boolean {
  return Boolean(column["input"]) && !column["ragged"] && sizesOf(column).length <= 1;
}

/** Returns the predicted class of a sample; "" for a model without classes. */
function predictedOf({ index }: Sample): string {
  const { prediction = "", value } = rows.value[index] ?? {};
  return value === undefined ? prediction : "";
}

/** Returns the classes that have means, in their order, and how many there are in all. */
function classesOf(samples: readonly Sample[]): readonly [readonly string[], number] {
  const all = countsOf(samples.filter(({ index }) => !rows.value[index]?.problem).map(predictedOf));
  return [inOrder(all.slice(0, MOST_CLASSES).map(([name]) => name)), all.length];
}

function explainedIn(samples: readonly Sample[], column: Column, inputs: readonly Column[]): Explained[] {
  const own = inputs.find(({ input }) => input === column["input"]);
  return samples.flatMap((sample) => {
    const part = tensorIn(sample.cells, column);
    const input = own && tensorIn(sample.cells, own)?.values;
    return part ? [{ part, predicted: predictedOf(sample), input }] : [];
  });
}

/** The importance of features, of every attribution of a vector. */
export function Features({ folder, samples }: Props): preact.JSX.Element | null {
  const charts = pictured(folder).filter(isOfFeatures);
  const [classes] = classesOf(samples);
  const inputs = columnsOf(folder, ["input"]);
  if (charts.length === 0) return null;
  return (
    <Panel id="features" title="Features">
      <p class="muted small">
        The mean magnitude of each feature’s attribution with its standard deviation
        {classes.length > 1 && ", and by predicted class"}. Beside it a dot for each row: what raises the explained
        target lies on the right.{" "}
        {inputs.length > 0
          ? "The colour of a dot is the value of the feature."
          : "With keep_inputs: true, the colour of a dot is the value of the feature."}
      </p>
      {inputs.length > 0 && (
        <p class="levels muted small">
          low{" "}
          {Array.from({ length: LEVELS }, (_, level) => (
            <i key={level} class={`level${level}`} />
          ))}{" "}
          high
        </p>
      )}
      {charts.map((column) => {
        const explained = explainedIn(samples, column, inputs);
        const { input = "" } = column;
        const names = folder.manifest.feature_names?.[input] ?? (sizesOf(column).length ? [] : [input]);
        const shown = { explained, names, classes: classes.length > 1 ? classes : [] };
        return <Importances key={column.name} title={titleOf(folder, column)} {...shown} />;
      })}
    </Panel>
  );
}

type ChartProps = Readonly<{ title: string; explained: readonly Explained[] }> &
  Readonly<Record<"classes" | "names", readonly string[]>>;

function Importances({ title, explained, classes, names }: ChartProps): preact.JSX.Element | null {
  const every = Math.ceil(explained.length / MOST_DOTS);
  const dotted = explained.filter((_, row) => row % every === 0);
  const present = classes.filter((name) => explained.some(({ predicted }) => predicted === name));
  const all = importancesOf(explained, present);
  const features = all.slice(0, MOST_FEATURES);
  const valuesOf = (feature: number): number[] => dotted.map(({ part }) => part.values[feature] ?? NaN);
  const limit = limitOf(features.flatMap(({ feature }) => valuesOf(feature)));
  const most = Math.max(...features.flatMap(({ mean, byClass }) => [mean, ...byClass])) || 1;
  const isColoured = dotted.every(({ part, input }) => input?.length === part.values.length);
  const named = present.map((name) => <bdi>{name}</bdi>);
  if (explained.length === 0) return null;
  return (
    <>
      <h3>
        <bdi>{title}</bdi>
      </h3>
      <Table
        kind="importance"
        heads={["Feature", "Mean |attribution|", ...named, `Attribution, ± ${short(limit)}`]}
        rows={features.map(({ feature, mean, deviation, byClass }) => {
          const inputs = dotted.map(({ input }) => input?.[feature] ?? 0);
          const levels = isColoured ? levelsOf(inputs) : inputs.map(() => Math.floor(LEVELS / 2));
          return [
            <bdi>{names[feature] ?? `[${feature}]`}</bdi>,
            <Share share={mean / most} text={`${short(mean)} ± ${short(deviation)}`} />,
            ...byClass.map((own) => <Share share={own / most} text={short(own)} />),
            <Swarm dots={dotsOf(valuesOf(feature), levels, limit)} />,
          ];
        })}
      />
      <p class="muted small">
        {explained.length.toLocaleString("en")} rows, {dotted.length} of them as dots
        {all.length > features.length &&
          `; ${all.length - features.length} features with smaller attributions are not shown`}
        .
      </p>
    </>
  );
}

function Share({ share, text }: { share: number; text: string }): preact.JSX.Element {
  return (
    <>
      <div class="share">
        <i style={{ width: `${100 * share}%` }} />
      </div>
      <span class="muted small">{text}</span>
    </>
  );
}

const [WIDTH, HEIGHT, RADIUS] = [420, 34, 2] as const;

/** Dots along an axis from one limit to the other, zero in the middle. */
function Swarm({ dots }: { dots: readonly Dot[] }): preact.JSX.Element {
  const most = Math.max(...dots.map(({ rank }) => Math.abs(rank)), 1);
  const step = Math.min(1.5 * RADIUS, (HEIGHT / 2 - RADIUS) / most);
  const pointAt = ({ at, rank }: Dot): string =>
    `M${(WIDTH / 2 + at * (WIDTH / 2 - 2 * RADIUS)).toFixed(1)} ${(HEIGHT / 2 + rank * step).toFixed(1)}h0`;
  const pointsAt = (level: number): string => dots.map((dot) => (dot.level === level ? pointAt(dot) : "")).join("");
  return (
    <svg class="swarm" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label={`${dots.length} rows`}>
      <path class="zero" d={`M${WIDTH / 2} 0V${HEIGHT}`} />
      {Array.from({ length: LEVELS }, (_, level) => (
        <path key={level} class={`level${level}`} d={pointsAt(level)} />
      ))}
    </svg>
  );
}

/** The mean attribution of images and tokens by predicted class. */
export function Means({ folder, samples }: Props): preact.JSX.Element | null {
  const [classes, count] = classesOf(samples);
  const columns = pictured(folder).filter((column) => !isOfFeatures(column));
  const texts = columnsOf(folder, ["tokens"]).length ? columnsOf(folder, ["token_attribution"]) : [];
  const samplesBy = classes.map((name) => [name, samples.filter((sample) => predictedOf(sample) === name)] as const);
  const charts = [
    ...columns.map((column) => [column, <MeanPictures column={column} samplesBy={samplesBy} />] as const),
    ...texts.map((column) => [column, <MeanTokens column={column} samplesBy={samplesBy} />] as const),
  ];
  if (charts.length === 0) return null;
  return (
    <Panel id="means" title="Mean attribution by class">
      <p class="muted small">
        The mean over the rows with the same predicted class: what raises the explained target is red, what lowers it is
        blue{count > classes.length && `; the ${classes.length} most frequent of ${count} classes`}.
      </p>
      {charts.map(([column, chart]) => (
        <section key={column.name} aria-label={column.name}>
          <h3>
            <bdi>{titleOf(folder, column)}</bdi>
          </h3>
          {chart}
        </section>
      ))}
    </Panel>
  );
}

type MeanProps = Readonly<{ column: Column; samplesBy: readonly (readonly [string, readonly Sample[]])[] }>;

function MeanPictures({ column, samplesBy }: MeanProps): preact.JSX.Element {
  const means = samplesBy.flatMap(([name, samples]) => {
    const parts = samples.flatMap(({ cells }) => tensorIn(cells, column) ?? []);
    const part = meanPicture(parts);
    return part ? [{ name: name || "all rows", part, count: parts.length }] : [];
  });
  const scale = scaleOf(
    means.flatMap(({ part }) => Array.from(part.values)),
    true,
  );
  return (
    <div class="miniatures">
      {means.map(({ name, part, count }) => (
        <HeatMiniature key={name} title={name} part={part} scale={scale} note={`${count.toLocaleString("en")} rows`} />
      ))}
    </div>
  );
}

function MeanTokens({ column, samplesBy }: MeanProps): preact.JSX.Element {
  return (
    <>
      {samplesBy.map(([name, samples]) => {
        const texts = samples.flatMap(({ cells }): [readonly string[], Numbers][] => {
          const [tokens, part] = [cells["tokens"] as readonly string[] | null, tensorIn(cells, column)];
          return tokens && part ? [[tokens, part.values]] : [];
        });
        const means = tokenMeans(texts, LEAST_COUNT);
        const ends =
          means.length > 2 * MOST_TOKENS ? [...means.slice(0, MOST_TOKENS), ...means.slice(-MOST_TOKENS)] : means;
        return (
          <div key={name} class="token-means">
            <bdi class="muted small">{name || "all rows"}</bdi>
            <Tokens
              texts={ends.map(({ token, count }) => `${token} × ${count}`)}
              values={ends.map(({ mean }) => mean)}
            />
          </div>
        );
      })}
    </>
  );
}

/** The statistics of captured layers. */
export function Layers({ folder, samples }: Props): preact.JSX.Element | null {
  const columns = columnsOf(folder, ["capture"]);
  if (columns.length === 0) return null;
  return (
    <Panel id="layers" title="Activations by layer">
      <p class="muted small">A unit is a channel, or an index of the last axis. It is dead if it is 0 in every row.</p>
      <Table
        heads={["Capture", "Shape", "Mean", "Deviation", "Smallest", "Largest", "Zeros", "Dead units", "Mean by unit"]}
        rows={columns.flatMap((column) => layerOf(column, samples))}
      />
      <Strongest {...{ folder, samples, columns }} />
    </Panel>
  );
}

/** Shows the rows in which a unit of a capture is largest, by its mean in each. */
function Strongest({ folder, samples, columns }: Props & Readonly<{ columns: readonly Column[] }>): preact.JSX.Element {
  const [{ name, unit }, field] = useFields({ name: columns[0]?.name ?? "", unit: undefined as number | undefined });
  const column = columns.find((each) => each.name === name);
  const found = samples.flatMap(({ index, cells }) => {
    const part = column && tensorIn(cells, column);
    const [row, mean] = [rows.value[index], part && unitsOf([part]).means[unit ?? -1]];
    return row && mean !== undefined ? [{ row, mean }] : [];
  });
  const [first, ...others] = found.sort((one, other) => other.mean - one.mean).slice(0, MOST_ROWS);
  const range = `from ${short(first?.mean ?? NaN)} down to ${short((others.at(-1) ?? first)?.mean ?? NaN)}`;
  return (
    <>
      <div class="tools">
        <Select label="Which rows raise" of={columns.map((each) => each.name)} {...field("name")} />
        <NumberField label="Unit" least={0} whole empty="its number" {...field("unit")} />
      </div>
      {unit !== undefined && (
        <p class="muted small">
          {first ? `The mean of unit ${unit} in each row, ${range}.` : `There is no unit ${unit}.`}
        </p>
      )}
      {first && <Cards folder={folder} rows={[first, ...others].map(({ row }) => row)} />}
    </>
  );
}

/** Returns the line of one capture; none where no row has it. */
function layerOf(column: Column, samples: readonly Sample[]): preact.ComponentChildren[][] {
  const parts = samples.flatMap(({ cells }) => tensorIn(cells, column) ?? []);
  if (parts.length === 0) return [];
  const { mean, deviation, least, most, zeros, notFinite, count } = statisticsOf(joined(parts));
  const { means, dead } = unitsOf(parts);
  const isOne = parts.every(({ shape }) => String(shape) === String(parts[0]?.shape));
  return [
    [
      <code>{column.name}</code>,
      isOne ? shapeText(parts[0]?.shape ?? []) : "varies",
      ...[mean, deviation, least, most],
      `${((100 * zeros * count) / Math.max(1, count - notFinite)).toFixed(1)} %`,
      <>
        {`${dead.length} of ${means.length}`}
        <div class="muted small">{dead.slice(0, MOST_DEAD).join(", ") + (dead.length > MOST_DEAD ? ", …" : "")}</div>
        {notFinite > 0 && <div class="muted small">{notFinite.toLocaleString("en")} not finite</div>}
      </>,
      <Spark heights={means} />,
    ],
  ];
}

function joined(parts: readonly Part[]): Float64Array {
  const all = new Float64Array(parts.reduce((sum, { values }) => sum + values.length, 0));
  let at = 0;
  for (const { values } of parts) {
    all.set(values, at);
    at += values.length;
  }
  return all;
}
