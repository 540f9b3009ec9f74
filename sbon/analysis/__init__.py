"""Analysis of an overlay's telemetry logs: jobs on Spark, tables, and one report. Only this part of the library needs Spark."""
