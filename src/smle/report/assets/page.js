"use strict";
// What the page does besides the explorer: theme, copying, filters, printing.

function setUpPage() {
  const root = document.documentElement;
  root.classList.add("js");
  const theme = document.getElementById("theme");
  const dark = () => root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  const label = () => { theme.textContent = dark() ? "Light" : "Dark"; };
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    label();
    document.dispatchEvent(new CustomEvent("theme"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    label();
    document.dispatchEvent(new CustomEvent("theme"));
  });
  label();

  for (const button of document.querySelectorAll("button.copy")) {
    button.addEventListener("click", () => {
      const text = document.getElementById(button.dataset.copy);
      const range = document.createRange();
      range.selectNodeContents(text);
      const selection = getSelection();
      selection.removeAllRanges();
      selection.addRange(range);
      // Pages opened from a file have no clipboard object.
      const done = document.execCommand("copy");
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    });
  }

  for (const field of document.querySelectorAll("input.filter")) {
    const list = document.getElementById(field.dataset.list);
    const rows = [...list.querySelectorAll("[data-row]")];
    const count = document.getElementById(field.dataset.list + "-count");
    field.addEventListener("input", () => {
      const wanted = field.value.toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
        shown += !row.hidden;
      }
      if (count) count.textContent = `${shown} of ${rows.length}`;
    });
  }

  addEventListener("beforeprint", () => {
    for (const part of document.querySelectorAll("details")) part.open = true;
  });
}
