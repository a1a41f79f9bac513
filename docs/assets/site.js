// Names for parts of the theme that people who listen to a page would find without one.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
