// In a browser: asks the server that the page's address names, and sends what came of it to its own.
import { Client, tensor } from "../dist/index.js";

const asked = new URL(location.href).searchParams;
const image = tensor(
  Float32Array.from({ length: 64 }, (_, index) => (index % 17) / 16),
  [1, 1, 8, 8],
);
const told = [];
try {
  const client = new Client(asked.get("server") ?? "");
  const question = { model: asked.get("model") ?? "", inputs: { image }, captures: ["conv1"], inputGradients: true };
  for (const stream of [false, true]) {
    const { predictions, captures, inputGradients } = await client.inspect(question, { stream });
    const arrays = [predictions["output"], captures["conv1@output"], inputGradients["image"]];
    told.push(arrays.map((each) => [each.shape, [...new Uint8Array(each.data.buffer)]]));
  }
} catch (failure) {
  told.push([failure.reason ?? String(failure), failure.field ?? ""]);
}
await fetch("told", { method: "POST", body: JSON.stringify(told) });
