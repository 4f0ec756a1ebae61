/** Numbers as people read them. */

/** Returns a number in a few digits, with a real minus. */
export function short(value: number, digits = 4): string {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "NaN" : value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (Number.isSafeInteger(value) && size < 1e9) return minus(String(value));
  const text =
    size !== 0 && (size < 1e-3 || size >= 1e6)
      ? value.toExponential(digits - 2)
      : String(Number(value.toPrecision(digits)));
  return minus(text);
}

/** Returns the shortest text of a number that is the same number in single precision, where it has that. */
export function exact(value: number): string {
  const rounded = [7, 8, 9].map((digits) => Number(value.toPrecision(digits)));
  return String(rounded.find((number) => Math.fround(number) === value) ?? value);
}

/** Returns a number's text with a real minus. */
export function minus(text: string): string {
  return text.replaceAll("-", "−");
}

/** Returns a difference, with its sign. */
export function signed(value: number, text = short(value)): string {
  if (!/[1-9∞]/.test(text)) return text.replace("−", "");
  return value > 0 ? `+${text}` : text;
}

/** Returns a text that leaves the direction of what is around it alone, where no element can. */
export function isolated(text: string): string {
  return `\u2068${text}\u2069`;
}

/** Returns a shape as people read it: `1 × 16 × 8 × 8`. */
export function shapeText(shape: readonly number[]): string {
  return shape.map((size) => (size < 0 ? "any" : `${size}`)).join(" × ");
}

/** Returns a probability as people read it. */
export function percent(probability: number): string {
  if (probability < 0.0005) return "< 0.1 %";
  return `${(100 * probability).toFixed(probability > 0.9995 ? 2 : 1)} %`;
}

/** Returns a field of a message as the contract writes it: `layer_grad_cam`. */
export function inSnakeCase(field: string): string {
  return field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

const LONG_NAME = 16;

/** Returns names, of which some are long, without a beginning that all have in common: what differs is read. */
export function distinct(names: readonly string[]): string[] {
  const [first = "", ...others] = names;
  let common = 0;
  while (common < first.length && others.every((each) => each[common] === first[common])) common++;
  const long =
    others.length > 0 && common > 1 && common < first.length && names.some(({ length }) => length > LONG_NAME);
  return names.map((each) => (long ? `…${each.slice(common)}` : each));
}

/** Returns whole numbers in their order, with runs in brief: `0 to 4, 7`. */
export function rangesText(numbers: readonly number[]): string {
  const starts = numbers.filter((each, at) => numbers[at - 1] !== each - 1);
  const ends = numbers.filter((each, at) => numbers[at + 1] !== each + 1);
  return starts.map((start, at) => (start === ends[at] ? `${start}` : `${start} to ${ends[at]}`)).join(", ");
}
