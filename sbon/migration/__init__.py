"""Moving a running operator to another host: settings, the machine (`sbon.migration.machine`), and its actions."""
