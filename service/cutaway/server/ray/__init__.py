"""Workers on a Ray cluster: what starts them, and the tunnel by which the gateway calls them."""
