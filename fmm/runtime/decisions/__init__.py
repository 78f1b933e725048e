"""The decision: plan or vendor, the limits of workspace and error, the calibration in force, and early declines."""
