"""Generated pages of docs/, from the files in results/ and the definitions in the code."""
