"""What agents measure, as typed tables that they and the analysis share. Values in, values out: files and brokers are `agent`'s."""
