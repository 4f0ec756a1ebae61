/** The inspector: a page on which people look into a served model. */

import { render } from "preact";
import { App } from "./app/App.js";
import { start } from "./app/start.js";

const root = document.getElementById("app");
if (root) {
  start();
  render(<App />, root);
}
