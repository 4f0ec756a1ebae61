"use strict";
(() => {
  const bar = document.getElementById("filters");
  const rows = [...document.querySelectorAll("[data-row]")];
  const selects = [...bar.querySelectorAll("select")];
  const apply = () => {
    for (const row of rows) {
      row.hidden = selects.some((one) => one.value !== "" && row.getAttribute("data-" + one.name) !== one.value);
    }
    const lines = rows.filter((row) => row.tagName === "TR");
    bar.querySelector("output").textContent =
      lines.filter((row) => !row.hidden).length + " of " + lines.length + " listed rows";
  };
  const follow = () => {
    const row = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (row === null || !row.hidden) return;
    for (const one of selects) one.value = "";
    apply();
    row.scrollIntoView();
  };
  bar.addEventListener("change", apply);
  bar.addEventListener("reset", () => setTimeout(apply));
  bar.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", follow);
  bar.hidden = false;
  apply();
  follow();
})();
