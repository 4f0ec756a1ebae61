/** The inspector: a page on which people look into a served model. */

import { render } from "preact";
import { Client } from "@cutaway/client";

function App(): preact.JSX.Element {
  return <main>{typeof Client}</main>;
}

const root = document.getElementById("app");
if (root) render(<App />, root);
