/** Globs as the contract has them: `*` and `?` within one part of a dotted name, `**` across parts. */

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
