/** A job inside the page: `cutaway batch report` writes such a file, which needs no server. */

import { effect } from "@preact/signals";
import { openFolder } from "./folder.js";
import { chosen, show } from "./query.js";
import { rows } from "./rows.js";

/** Returns the files of the job that this page has inside; none if it comes from a server. */
export function embeddedFiles(): File[] {
  return [...document.querySelectorAll<HTMLElement>("script[data-file]")].map(({ dataset, textContent }) => {
    const bytes = Uint8Array.from(atob(textContent), (letter) => letter.charCodeAt(0));
    return new File([bytes], dataset["file"] ?? "");
  });
}

/** Opens these files, and follows the address: `#row-17` is row 17. */
export async function openEmbedded(files: readonly File[]): Promise<void> {
  const folder = await openFolder(files);
  document.title = `${folder.manifest.model} ${folder.manifest.version}: explanations`;
  show(folder);
  const follow = (): void => {
    const row = rows.value.find(({ number }) => location.hash === `#row-${number}`);
    if (row) chosen.value = row;
  };
  addEventListener("hashchange", follow);
  follow();
  effect(() => {
    if (chosen.value) history.replaceState(null, "", `#row-${chosen.value.number}`);
  });
}
