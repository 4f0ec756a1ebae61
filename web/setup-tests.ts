/** Tests run in Node.js, which has no address of a page. */

globalThis.location = new URL("http://page.test/") as unknown as Location;
