/** The inspector: a page on which people look into a served model, or into the results of a job. */

import { render } from "preact";
import { App } from "./app/App.js";
import { start } from "./app/start.js";
import { JobsView } from "./jobs/JobsView.js";
import { embeddedFiles, openEmbedded } from "./jobs/embedded.js";

const root = document.getElementById("app");
const files = embeddedFiles();
if (root && files.length) {
  await openEmbedded(files);
  render(
    <main>
      <JobsView />
    </main>,
    root,
  );
} else if (root) {
  start();
  render(<App />, root);
}
