/** Light, dark, or as the system has it. */

import { effect, signal } from "@preact/signals";

/** The choices, in the order in which they are offered. */
export const THEMES = ["system", "light", "dark"] as const;

/** A choice. */
export type Theme = (typeof THEMES)[number];

/** What was chosen. */
export const theme = signal<Theme>(THEMES.find((each) => each === localStorage.getItem("theme")) ?? "system");

/** Keeps the page in the chosen theme from now on. */
export function applyTheme(): void {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = (): void => {
    const isDark = theme.value === "dark" || (theme.value === "system" && dark.matches);
    document.documentElement.dataset["theme"] = isDark ? "dark" : "light";
    localStorage.setItem("theme", theme.value);
  };
  dark.addEventListener("change", apply);
  effect(apply);
}
