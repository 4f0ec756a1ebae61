/** The module tree as rows: which are shown, as it is folded and searched. */

import type { Module, Operator } from "@cutaway/contract/model_pb";

/** A module, or an operator inside one. */
export interface ModuleNode {
  /** The name by which a question names it: `layer1.0.conv1`, or an operator's address; "" for the model. */
  readonly address: string;
  /** Its last part. */
  readonly name: string;
  readonly kind: "module" | "operator";
  readonly type: string;
  /** What is inside it: operators, then modules. */
  readonly inside: ModuleNode[];
  readonly shapes: readonly (readonly number[])[];
  readonly parameters: number;
  readonly calls: number;
  readonly aliases: readonly string[];
}

/** A row that is shown; one that is no match is above one that is. */
export type Shown = Readonly<{ row: ModuleNode; depth: number; match: boolean }>;

/** Returns the row of the model with all that is inside it; none for a caller who may not see modules. */
export function treeOf(modules: readonly Module[], operators: readonly Operator[]): ModuleNode[] {
  const rows = new Map(modules.map((each) => [each.name, rowOf("module", each.name, each)]));
  for (const each of operators) {
    const module = each.address.slice(0, each.address.lastIndexOf(":"));
    rows.get(module)?.inside.push(rowOf("operator", each.address, each));
  }
  const around = (name: string): ModuleNode | undefined => {
    const above = name.slice(0, Math.max(0, name.lastIndexOf(".")));
    return name === "" ? undefined : (rows.get(above) ?? around(above));
  };
  const top: ModuleNode[] = [];
  for (const [name, row] of rows) (around(name)?.inside ?? top).push(row);
  return top;
}

type Part = Pick<Module, "calls" | "outputShapes"> & Partial<Pick<Module, "type" | "parameters" | "aliases">>;

function rowOf(
  kind: ModuleNode["kind"],
  address: string,
  { type = kind, parameters = 0n, aliases = [], ...part }: Part,
): ModuleNode {
  const name = address.slice(address.lastIndexOf(kind === "module" ? "." : ":") + 1) || type;
  const shapes = part.outputShapes.map(({ sizes }) => sizes.map(Number));
  return { address, name, kind, type, inside: [], shapes, parameters: Number(parameters), calls: part.calls, aliases };
}

/** Returns rows with all that is inside them, each above what is inside it. */
export function allIn(rows: readonly ModuleNode[]): ModuleNode[] {
  return rows.flatMap((row) => [row, ...allIn(row.inside)]);
}

/** Returns the rows that are shown: without what is folded; or those that a text or a glob finds, with all above them. */
export function shownRows(
  rows: readonly ModuleNode[],
  folded: ReadonlySet<string>,
  sought: string,
  depth = 0,
): Shown[] {
  return rows.flatMap((row) => {
    const match = fits(row, sought);
    const isFolded = sought === "" && folded.has(row.address);
    const inside = isFolded ? [] : shownRows(row.inside, folded, sought, depth + 1);
    return match || inside.length ? [{ row, depth, match }, ...inside] : [];
  });
}

function fits({ address, type }: ModuleNode, sought: string): boolean {
  if (/[*?]/.test(sought)) return matches(sought, address);
  return `${address} ${type}`.toLowerCase().includes(sought.toLowerCase());
}

const LARGE = 300;

/** Returns the addresses of what can be folded: all that has rows below it, but for the model. */
export function foldable(rows: readonly ModuleNode[]): string[] {
  return allIn(rows).flatMap(({ address, inside }) => (address && inside.length ? [address] : []));
}

/** Returns what is folded at first: of a large model, all below the first level. */
export function foldedAtFirst(rows: readonly ModuleNode[]): Set<string> {
  return new Set(allIn(rows).length > LARGE ? foldable(rows) : []);
}

/** Returns what is folded, or open, with one more address, or without it. */
export function turned(addresses: ReadonlySet<string>, { address }: Pick<ModuleNode, "address">): ReadonlySet<string> {
  const others = new Set(addresses);
  return others.delete(address) ? others : others.add(address);
}

/** Whether a whole name matches a glob; in time linear in the length of either, unlike regular expressions. */
export function matches(pattern: string, name: string): boolean {
  const parts = pattern.match(/\*\*|[^]/gu) ?? [];
  const skipping = (from: Set<number>): Set<number> => {
    for (const at of from) if (parts[at]?.startsWith("*")) from.add(at + 1);
    return from;
  };
  let reached = skipping(new Set([0]));
  for (const letter of name) {
    const next = new Set<number>();
    for (const at of reached) {
      const part = parts[at];
      if (part === "**" || (part === "*" && letter !== ".")) next.add(at);
      else if (part === letter || (part === "?" && letter !== ".")) next.add(at + 1);
    }
    reached = skipping(next);
  }
  return reached.has(parts.length);
}
