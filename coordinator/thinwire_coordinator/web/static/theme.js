// Before anything is drawn: the theme that was chosen here, if one was. Else the browser's own.
"use strict";
try {
  const chosen = localStorage.getItem("theme");
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
} catch {
  // a browser that keeps nothing has its own theme
}
