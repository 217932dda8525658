// Applies the theme that the visitor chose, before the page is drawn. Otherwise the browser's own theme is used.
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // without storage, the browser's own theme is used
}
