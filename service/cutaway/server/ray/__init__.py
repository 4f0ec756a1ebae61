"""Workers on a Ray cluster: the process that starts them, and the tunnel by which the gateway calls them."""
