"""What the telemetry logs of an overlay say: jobs on Spark, tables, and one report. The only part of the library that needs Spark."""
