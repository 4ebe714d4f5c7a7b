// What the theme leaves out for keyboards and screen readers; it makes these parts by script, some of them late.
const complete = () => {
  for (const bar of document.querySelectorAll(".md-code__nav")) bar.setAttribute("role", "none");
  for (const region of document.querySelectorAll(".md-typeset__scrollwrap")) {
    region.querySelector("table").tabIndex = region.scrollWidth > region.clientWidth ? 0 : -1;
  }
  for (const button of document.querySelectorAll(".md-version__current")) {
    button.setAttribute("aria-label", `Select version: ${button.textContent}`);
  }
};
new MutationObserver(complete).observe(document.body, { childList: true, subtree: true });
addEventListener("resize", complete);
complete();
